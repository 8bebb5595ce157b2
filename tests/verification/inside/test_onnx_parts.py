"""Parts of ONNX graphs: found in order, cut out, run alone, and written down."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from handmade_onnx import deep as deep_graph
from handmade_onnx import model, value, with_control_flow, with_functions
from osa_runtime import load
from osa_runtime.artifact import Artifact
from osa_runtime.errors import RunError
from osa_runtime.exporters.functions import DOMAIN
from osa_runtime.verification.inside.model_parts import Core
from osa_runtime.verification.inside.onnx_parts import OnnxParts
from osa_runtime.verification.inside.onnx_slicing import GraphIndex

Deep = Callable[..., Path]
ATTENTIONS = tuple(f"stack.blocks.{i}.attention" for i in range(3))
VARIANTS: dict[str, dict[str, Any]] = {
    "functions": {},
    "inlined": {"functions": "inline"},
    "unrolled": {"functions": "inline", "squarings": 8},
    "external": {"external_data": True},
}


def opened(folder: Path) -> OnnxParts:
    return OnnxParts(folder / "model.onnx", Artifact.open(folder).manifest.attentions, 1)


def feeds(name: str) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    if name == "vit":
        return {"images": generator.standard_normal((2, 1, 8, 8)).astype(np.float32)}
    mask = np.arange(7) < np.array([[7], [3]])
    return {"tokens": generator.integers(0, 11, (2, 7)), "mask": mask}


@pytest.mark.parametrize("name", ["vit", "branching"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_units_and_attentions_are_found_in_order(name: str, variant: str, deep: Deep) -> None:
    model_parts = opened(deep(name, **VARIANTS[variant]))
    assert model_parts.attentions == ATTENTIONS
    expected = [f"stack.blocks.{i}.{part}" for i in range(3) for part in ("attention", "mlp")]
    assert [unit for unit in model_parts.units if unit in expected] == expected
    assert model_parts.units[-1] == "head"
    assert "embed" in model_parts.units


@pytest.mark.parametrize("name", ["vit", "branching"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_parts_one_after_the_other_are_the_whole(name: str, variant: str, deep: Deep) -> None:
    """Each block's output is the next one's input, and what a part gives alone it gives in the whole."""
    folder = deep(name, **VARIANTS[variant])
    model_parts, given = opened(folder), feeds(name)
    chain = [f"stack.blocks.{i}.{part}" for i in range(3) for part in ("attention", "mlp")]
    values = model_parts.outputs_of(["embed", *chain, "head"], given)
    masks = (given["mask"],) if "mask" in given else ()
    for before, unit in itertools.pairwise(chain):
        extra = masks if unit.endswith("attention") else ()
        alone = model_parts.call(unit, (values[before], *extra))
        np.testing.assert_allclose(alone, values[unit], rtol=1e-5, atol=1e-5 * np.abs(values[unit]).max())
    with load(folder) as session:
        np.testing.assert_allclose(values["head"], session.run(given)["logits"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["vit", "branching"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_cores_are_what_attend_gives(name: str, variant: str, deep: Deep) -> None:
    model_parts = opened(deep(name, **VARIANTS[variant]))
    for attention, core in model_parts.cores_of(ATTENTIONS, feeds(name)).items():
        assert core.q.shape == core.k.shape == core.v.shape == core.out.shape
        assert (core.mask is not None) == (name == "branching")
        np.testing.assert_allclose(model_parts.apply_attention(attention, core, core.v), core.out, rtol=1e-5, atol=1e-6)
        twice = model_parts.apply_attention(attention, core, 2 * core.v)
        np.testing.assert_allclose(twice, 2 * core.out, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_part_is_written_as_a_model_of_its_own(variant: str, deep: Deep, tmp_path: Path) -> None:
    model_parts, given = opened(deep("branching", **VARIANTS[variant])), feeds("branching")
    before = model_parts.outputs_of(["embed"], given)["embed"]
    written = model_parts.write_unit(ATTENTIONS[0], (before, given["mask"]), tmp_path, given)
    session = onnxruntime.InferenceSession(str(tmp_path / written.file), providers=["CPUExecutionProvider"])
    expected = model_parts.call(ATTENTIONS[0], (before, given["mask"]))
    np.testing.assert_allclose(session.run(None, dict(written.inputs))[0], expected, rtol=1e-5, atol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["unit.onnx"]


def test_a_missing_mask_is_an_error(deep: Deep) -> None:
    with pytest.raises(RunError, match="takes a mask"):
        opened(deep("encoder")).call(ATTENTIONS[0], (np.zeros((1, 3, 16), np.float32),))


def test_a_wrong_shape_is_an_error_with_the_part(deep: Deep) -> None:
    with pytest.raises(RunError, match="ONNX Runtime failed in a part of the model"):
        opened(deep("vit")).call("head", (np.zeros((1, 5), np.float32),))


def saved(made: onnx.ModelProto, tmp_path: Path) -> OnnxParts:
    onnx.save(made, tmp_path / "m.onnx")
    return OnnxParts(tmp_path / "m.onnx")


def test_control_flow_that_reads_from_outside_is_cut_out_whole(tmp_path: Path) -> None:
    model_parts = saved(with_control_flow(), tmp_path)
    assert model_parts.attentions == ()
    assert "choice" not in model_parts.units or model_parts.call("choice", (np.ones((1, 4), np.float32),)).shape == (
        1,
        4,
    )
    index = GraphIndex(with_control_flow())
    sliced = index.slice(["positive"], ["y"])
    assert [node.op_type for node in sliced.graph.node] == ["If"]
    assert {tensor.name for tensor in sliced.graph.initializer} == {"trips", "w"}
    session = onnxruntime.InferenceSession(sliced.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.full((2, 4), -1.0, np.float32)
    assert np.array_equal(session.run(None, {"x": x, "positive": np.array(True)})[0], x + 1.5)
    assert np.array_equal(session.run(None, {"x": x, "positive": np.array(False)})[0], x)


def test_functions_that_call_functions_stay(tmp_path: Path) -> None:
    model_parts = saved(with_functions(), tmp_path)
    assert model_parts.units == ("first", "middle", "last")
    x = np.array([[-1.0, 2.0, -3.0, 4.0]], np.float32)
    assert np.array_equal(model_parts.call("first", (x,)), np.maximum(x, 0))
    assert np.array_equal(model_parts.call("middle", (x,)), np.full((1, 4), x.sum() / 2))


@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
def test_blocks_by_hand(residual: bool, tmp_path: Path) -> None:
    model_parts = saved(deep_graph(2, residual=residual), tmp_path)
    blocks = [f"stack.blocks.{i}" for i in range(2)]
    assert [unit for unit in model_parts.units if unit in blocks] == blocks
    x = np.array([[1.0, 2.0, -3.0, 4.0]], np.float32)
    expected = 0.5 * np.maximum(x.sum() / 2 + 0.5, 0) * np.ones((1, 4)) + (x if residual else 0)
    np.testing.assert_allclose(model_parts.call(blocks[0], (x,)), expected, rtol=1e-6)


def test_two_calls_in_one_module_are_both_known(tmp_path: Path, deep: Deep) -> None:
    functions = list(onnx.load(deep("vit") / "model.onnx").functions)
    opset = onnx.load(deep("vit") / "model.onnx").opset_import
    nodes = [
        helper.make_node(
            "OrthogonalAttention", ["q", "k", "v", "s"], ["h", "n1"], name="a/OrthogonalAttention", domain=DOMAIN
        ),
        helper.make_node("OrthogonalAttention", ["q", "k", "h", "s"], ["y", "n2"], name="a/again", domain=DOMAIN),
    ]
    inputs = [value(name, ["b", "h", "n", 4]) for name in "qkv"] + [value("s", ["h"], TensorProto.FLOAT)]
    made = model(helper.make_graph(nodes, "g", inputs, [value("y", ["b", "h", "n", 4])]), functions)
    del made.opset_import[:]
    made.opset_import.extend(opset)
    made.ir_version = 10
    model_parts = saved(made, tmp_path)
    assert model_parts.attentions == ("a", "a#2")
    generator = np.random.default_rng(0)
    given = {name: generator.standard_normal((1, 2, 5, 4)).astype(np.float32) for name in "qkv"}
    cores = model_parts.cores_of(model_parts.attentions, given | {"s": np.array([0.1, 0.2], np.float32)})
    assert isinstance(cores["a"], Core)
    assert np.array_equal(cores["a"].out, cores["a#2"].v)
    assert cores["a"].squarings == cores["a#2"].squarings is not None
