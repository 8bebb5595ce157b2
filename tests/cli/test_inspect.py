"""``osa inspect``: its tables, its JSON, its picture, and one clear sentence for whatever is not a model."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

import handmade_onnx as handmade
from osa_runtime.cli.main import app

runner = CliRunner()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(handmade.with_functions(), path)
    return path


def test_tables(model: Path) -> None:
    result = runner.invoke(app, ["inspect", str(model)])
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    for expected in (
        "parameters 16",
        "opsets ai.onnx 18, test.functions 1 · IR 8",
        "in x float32 batch × 4",
        "test.functions.Twice 2 Once, twice",
        "Operators: 3 in the graph, 5 with functions expanded",
        "only inside functions: Relu 4",
        "CPU has a kernel for every node (5 with functions expanded)",
        "CUDA has a kernel for every node",
    ):
        assert expected in text


def test_gaps_are_shown(tmp_path: Path) -> None:
    onnx.save(handmade.one_node("MatMul", onnx.TensorProto.FLOAT16, inputs=2), tmp_path / "half.onnx")
    result = runner.invoke(app, ["inspect", str(tmp_path / "half.onnx"), "--provider", "cpu"])
    assert result.exit_code == 0
    assert "CPU: 1 of 1 nodes have no kernel" in result.output
    assert "CUDA" not in result.output


def test_json_is_one_object(model: Path) -> None:
    result = runner.invoke(app, ["inspect", str(model), "--json", "--provider", "cpu"])
    report = json.loads(result.output)
    assert report["graph"]["operators"] == {"test.functions::Twice": 2, "MatMul": 1}
    assert [placement["provider"] for placement in report["placements"]] == ["cpu"]


def test_graph_is_drawn(model: Path, tmp_path: Path) -> None:
    picture = tmp_path / "sub" / "graph.svg"
    result = runner.invoke(app, ["inspect", str(model), "--graph", str(picture)])
    assert result.exit_code == 0, result.output
    assert picture.read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing"], 3, "does not exist; expected a folder that `osa export` wrote"),
        (["text.onnx"], 3, "is not an ONNX model, or only a part of one"),
        (["folder"], 3, "is an empty folder"),
        (["model.onnx", "--graph", "graph.jpg"], 2, "ends in .png or .svg"),
        (["model.onnx", "--graph", "text.onnx/graph.png"], 3, "Cannot write"),
        (["model.onnx", "--provider", "tpu"], 2, "Unknown provider 'tpu'"),
        (["missing", "--graph", "graph.png"], 3, "does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input(model: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str) -> None:
    folder = model.parent
    monkeypatch.chdir(folder)
    (folder / "folder").mkdir()
    (folder / "text.onnx").write_text("this is not a model")
    result = runner.invoke(app, ["inspect", *arguments])
    assert result.exit_code == code, result.output
    assert message in result.output
    assert result.output.count("\n") == 1
    assert {path.name for path in folder.iterdir()} == {"folder", "text.onnx", "model.onnx"}


def test_a_target_says_whether_and_why_not(model: Path) -> None:
    fine = runner.invoke(app, ["inspect", str(model), "--target", "ort"])
    assert fine.exit_code == 0
    assert "ONNX Runtime takes it (tried in 1.17.3, " in " ".join(fine.output.split())
    result = runner.invoke(app, ["inspect", str(model), "--target", "tract", "--target", "webgpu"])
    text = " ".join(result.output.split())
    assert result.exit_code == 1
    assert "tract: it has model-local functions (Once, Twice), and tract does not expand them" in text
    assert "Export it with --target webgpu." in text


def test_an_unknown_target_is_refused_with_all_names(model: Path) -> None:
    result = runner.invoke(app, ["inspect", str(model), "--target", "toaster"])
    assert result.exit_code == 2
    assert "--target toaster: expected one of ort, ort-web, webgpu" in " ".join(result.output.split())
