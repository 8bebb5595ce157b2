"""The picture of a graph: repeated blocks folded, boxes that do not touch, files that are really PNG and SVG."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest

import handmade_onnx as handmade
from osa_runtime.errors import InputError, MissingDependencyError, StorageError
from osa_runtime.inspection import drawing
from osa_runtime.inspection.drawing import draw_graph, lay_out
from osa_runtime.inspection.folded_graph import fold


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.inliner.inline_local_functions(model)


@pytest.mark.parametrize("residual", [False, True], ids=["skipless", "residual"])
def test_identical_blocks_are_drawn_once(residual: bool) -> None:
    drawn = fold(handmade.deep(8, residual=residual))
    assert drawn.repetition is not None
    assert (drawn.repetition.name, len(drawn.repetition.blocks)) == ("stack.blocks.0 to 7", 8)
    titles = ["MatMul", "Add", "Relu", "Mul"] + ["Add"] * residual
    assert [box.title for box in drawn.boxes if box.folded] == titles
    assert [box.title for box in drawn.boxes] == ["x", "Mul", *titles, "ReduceMean", "y"]
    assert drawn.boxes[2].detail == "mlp · 4 × 4"


def test_the_last_block_leads_on() -> None:
    drawn = fold(handmade.deep(3))
    targets = {arrow.target: arrow.source for arrow in drawn.arrows}
    titles = {box.key: box.title for box in drawn.boxes}
    head = next(key for key, title in titles.items() if title == "ReduceMean")
    assert titles[targets[head]] == "Mul"


def test_what_blocks_share_does_not_keep_them_apart() -> None:
    model = handmade.deep(4)
    # As exporters do: the first block computes something that all blocks read.
    shared = onnx.helper.make_node("Abs", ["bias"], ["shared"], name="stack.blocks.0.mlp/Abs")
    for node in model.graph.node:
        if node.op_type == "Add":
            node.input[1] = "shared"
    model.graph.node.insert(2, shared)
    drawn = fold(model)
    assert drawn.repetition is not None
    assert len(drawn.repetition.blocks) == 4
    assert [box.title for box in drawn.boxes if not box.folded] == ["x", "Mul", "Abs", "ReduceMean", "y"]


def test_shallow_graphs_are_drawn_whole() -> None:
    assert fold(handmade.deep(1)).repetition is None
    assert fold(handmade.with_functions()).repetition is None


def test_kinds() -> None:
    assert [box.kind for box in fold(handmade.with_functions()).boxes] == [
        "input", "function", "product", "function", "output"
    ]  # fmt: skip
    boxes = {box.title: box for box in fold(handmade.with_control_flow()).boxes}
    assert boxes["If"].kind == "control"
    assert boxes["If"].detail == "choice · 2 nodes inside"


def test_bodies_read_from_outside() -> None:
    drawn = fold(handmade.with_control_flow())
    target = next(box.key for box in drawn.boxes if box.title == "If")
    assert "input x" in {arrow.source for arrow in drawn.arrows if arrow.target == target}


def test_boxes_do_not_touch_and_arrows_go_down() -> None:
    keys = ["a", "b", "c", "d", "e"]
    edges = [("a", "b"), ("a", "c"), ("a", "d"), ("b", "e"), ("c", "e"), ("d", "e"), ("a", "e")]
    layout = lay_out(keys, edges, dict.fromkeys(keys, 1.0), ["e"])
    assert [layout.layer[key] for key in keys] == [0, 1, 1, 1, 2]
    row = sorted(layout.x[key] for key in "bcd")
    assert all(right - left >= 1 - 1e-9 for left, right in pairwise(row))
    assert all(route[0][1] < route[-1][1] for route in layout.routes.values())
    assert len(layout.routes["a", "e"]) == 3


@pytest.mark.parametrize(
    "model",
    [handmade.deep(8), handmade.with_functions(), handmade.with_control_flow(), inlined(handmade.with_functions())],
    ids=["deep", "functions", "control flow", "inlined"],
)
def test_pictures_are_what_their_names_say(model: onnx.ModelProto, tmp_path: Path) -> None:
    draw_graph(model, r"no formula: $\nonsense$", tmp_path / "g.PNG")
    assert (tmp_path / "g.PNG").read_bytes().startswith(b"\x89PNG")
    draw_graph(model, "title", tmp_path / "g.svg")
    assert ElementTree.parse(tmp_path / "g.svg").getroot().tag.endswith("svg")


def test_the_same_model_gives_the_same_picture(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw_graph(handmade.deep(3), "title", tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.parametrize("name", ["graph.jpg", "graph", "png"])
def test_other_endings_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends in \.png or \.svg"):
        draw_graph(handmade.deep(1), "title", tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_picture_too_large_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "MOST_PIXELS", 100)
    with pytest.raises(InputError, match="too large for a legible PNG"):
        draw_graph(handmade.deep(1), "title", tmp_path / "g.png")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Cannot write"):
        draw_graph(handmade.deep(1), "title", tmp_path / "file" / "g.png")


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        draw_graph(handmade.deep(1), "title", tmp_path / "g.png")
