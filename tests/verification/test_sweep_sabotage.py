"""Faults in narrow places that a few samples do not meet: the wide sweep meets them, by numbers alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from sabotage import broken_onnx, change_weight

from made_once import export_checkpoint
from osa_runtime.models import EncoderConfig, SkiplessEncoder, SkiplessViT, ViTConfig, save_checkpoint
from osa_runtime.pixels import Standardisation
from osa_runtime.verification import VerifySettings, verify

pytestmark = pytest.mark.slow

SIZES: dict[str, Any] = {"dim": 16, "depth": 2, "heads": 2, "alpha": 0.1}
CONFIGS = {
    "vit": ViTConfig(classes=10, **SIZES),
    "words": EncoderConfig(classes=3, vocabulary=700, max_length=160, form="dense", **SIZES),
    "features": EncoderConfig(classes=3, features=5, max_length=160, form="dense", **SIZES),
}
Node = onnx.NodeProto
Condition = list[Node]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    home = tmp_path_factory.mktemp("sweep")

    def make(name: str) -> tuple[Path, Path]:
        artifact, checkpoint = home / f"{name}-onnx", home / name
        if not artifact.exists():
            torch.manual_seed(0)
            config = CONFIGS[name]
            model = SkiplessViT(config) if isinstance(config, ViTConfig) else SkiplessEncoder(config)
            with torch.no_grad():
                model.head.weight.mul_(40.0)  # logits as large as those of trained models
            pixels = Standardisation((5.0,), (6.0,), (0.0, 16.0)) if name == "vit" else None
            save_checkpoint(model, checkpoint, standardisation=pixels)
            export_checkpoint(checkpoint, artifact)
        return artifact, checkpoint

    return make


def constant(name: str, value: Any, kind: int = TensorProto.FLOAT) -> Node:
    array = np.asarray(value, helper.tensor_dtype_to_np_dtype(kind))
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name))


def size_of(model: onnx.ModelProto, axis: int) -> Condition:
    """``size``: how long the axis of the first input is."""
    shape = helper.make_node("Shape", [model.graph.input[0].name], ["shape_"], start=axis, end=axis + 1)
    return [shape, helper.make_node("Cast", ["shape_"], ["size_"], to=TensorProto.FLOAT)]


def between(low: float, high: float) -> Condition:
    return [
        constant("low_", low),
        constant("high_", high),
        helper.make_node("Greater", ["size_", "low_"], ["above_"]),
        helper.make_node("Less", ["size_", "high_"], ["below_"]),
        helper.make_node("And", ["above_", "below_"], ["wrong_"]),
    ]


def large_rows(model: onnx.ModelProto, limit: float) -> Condition:
    """``wrong``: (batch, 1), the rows that hold a value beyond the limit."""
    name = model.graph.input[0].name
    return [
        helper.make_node("Abs", [name], ["abs_"]),
        helper.make_node("Flatten", ["abs_"], ["flat_"]),
        helper.make_node("ReduceMax", ["flat_", "axis_"], ["size_"], keepdims=1),
        constant("limit_", limit),
        helper.make_node("Greater", ["size_", "limit_"], ["wrong_"]),
    ]


def black_rows(model: onnx.ModelProto) -> Condition:
    """The rows of which most pixels are black, as in handwriting and never in noise."""
    name = model.graph.input[0].name
    return [
        constant("black_", -5 / 6 + 1e-3),
        helper.make_node("Less", [name, "black_"], ["dark_"]),
        helper.make_node("Cast", ["dark_"], ["counted_"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["counted_"], ["flat_"]),
        helper.make_node("ReduceMean", ["flat_", "axis_"], ["size_"], keepdims=1),
        constant("half_", 0.4),
        helper.make_node("Greater", ["size_", "half_"], ["wrong_"]),
    ]


def changed_output(model: onnx.ModelProto, nodes: Condition, factor: float = -1.0) -> None:
    """The output times a factor where ``wrong`` holds."""
    old = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["right_" if name == old else name for name in node.output]
        node.input[:] = ["right_" if name == old else name for name in node.input]
    model.graph.node.extend(
        [
            constant("axis_", [1], TensorProto.INT64),
            *nodes,
            constant("factor_", factor),
            helper.make_node("Mul", ["right_", "factor_"], ["changed_"]),
            helper.make_node("Where", ["wrong_", "changed_", "right_"], [old]),
        ]
    )


def replaced_output(model: onnx.ModelProto, *nodes: Node) -> None:
    """``nodes`` make the output of ``right``."""
    old = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["right_" if name == old else name for name in node.output]
    model.graph.node.extend(nodes)
    assert model.graph.node[-1].output[0] == old


def ignored_mask(model: onnx.ModelProto, nodes: Condition) -> None:
    """All tokens are real where ``wrong`` holds, which must be a scalar or (batch, 1)."""
    for node in model.graph.node:
        node.input[:] = ["mask_" if name == "mask" else name for name in node.input]
    used = helper.make_node("Or", ["mask", "wrong_"], ["mask_"])
    others = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, used, *others])


FIRST_PADDED = [
    constant("begin_", [0], TensorProto.INT64),
    constant("end_", [1], TensorProto.INT64),
    constant("along_", [1], TensorProto.INT64),
    helper.make_node("Slice", ["mask", "begin_", "end_", "along_"], ["head_"]),
    helper.make_node("Not", ["head_"], ["wrong_"]),
]
# A real token behind a padded one.
INTERIOR = [
    constant("along_", 1, TensorProto.INT64),
    constant("axis1_", [1], TensorProto.INT64),
    constant("begin_", [1], TensorProto.INT64),
    constant("end_", [2**31], TensorProto.INT64),
    constant("zero_", [0], TensorProto.INT64),
    constant("last_", [-1], TensorProto.INT64),
    helper.make_node("Slice", ["mask", "begin_", "end_", "axis1_"], ["later_"]),
    helper.make_node("Slice", ["mask", "zero_", "last_", "axis1_"], ["earlier_"]),
    helper.make_node("Not", ["earlier_"], ["padded_"]),
    helper.make_node("And", ["later_", "padded_"], ["after_"]),
    helper.make_node("Cast", ["after_"], ["after_number_"], to=TensorProto.FLOAT),
    helper.make_node("ReduceSum", ["after_number_", "axis1_"], ["gaps_"], keepdims=1),
    constant("nothing_", 0.0),
    helper.make_node("Greater", ["gaps_", "nothing_"], ["wrong_"]),
]


def replaced_embedding(model: onnx.ModelProto, number: int) -> None:
    table = next(t for t in model.graph.initializer if list(t.dims) == [700, 16])
    change_weight(model, table.name, lambda w: np.concatenate([w[:number], w[:1], w[number + 1 :]]))


Breaking = Callable[[onnx.ModelProto], None]
FAULTS: dict[str, tuple[str, Breaking]] = {
    "batches above 8": ("vit", lambda m: changed_output(m, [*size_of(m, 0), *between(8, 1e9)])),
    "batches above 32": ("vit", lambda m: changed_output(m, [*size_of(m, 0), *between(32, 1e9)])),
    "batches of 20 to 24": ("vit", lambda m: changed_output(m, [*size_of(m, 0), *between(19, 25)])),
    "lengths above 64": ("features", lambda m: changed_output(m, [*size_of(m, 1), *between(64, 512)])),
    "lengths of 80 to 100": ("words", lambda m: changed_output(m, [*size_of(m, 1), *between(79, 101)])),
    "the longest": ("words", lambda m: changed_output(m, [*size_of(m, 1), *between(159, 1e9)])),
    "large inputs": ("vit", lambda m: changed_output(m, large_rows(m, 6.0))),
    "larger inputs": ("features", lambda m: changed_output(m, large_rows(m, 30.0))),
    "very large inputs, a thousandfold": ("vit", lambda m: changed_output(m, large_rows(m, 500.0), 1000.0)),
    "drawings": ("vit", lambda m: changed_output(m, black_rows(m))),
    "clipped": (
        "vit",
        lambda m: replaced_output(
            m,
            constant("low_", -20.0),
            constant("high_", 20.0),
            helper.make_node("Clip", ["right_", "low_", "high_"], ["logits"]),
        ),
    ),
    "NaN made 0": (
        "vit",
        lambda m: replaced_output(
            m,
            constant("zero_", 0.0),
            helper.make_node("IsNaN", ["right_"], ["nan_"]),
            helper.make_node("Where", ["nan_", "zero_", "right_"], ["logits"]),
        ),
    ),
    "mask, first token": ("words", lambda m: ignored_mask(m, FIRST_PADDED)),
    "mask, between": ("words", lambda m: ignored_mask(m, INTERIOR)),
    "mask, long": ("features", lambda m: ignored_mask(m, [*size_of(m, 1), *between(64, 1e9)])),
    "one id": ("words", lambda m: replaced_embedding(m, 357)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_narrow_place_is_met(fault: str, made: Callable[..., Any], tmp_path: Path) -> None:
    name, breaking = FAULTS[fault]
    artifact, checkpoint = made(name)
    broken = broken_onnx(artifact, tmp_path / "broken", breaking)
    certificate = verify(broken, checkpoint, VerifySettings(seconds=600)).certificate
    wrong = [case for case in certificate.cases if case.verdict == "fail"]
    assert wrong, [(case.name, case.outputs[0].remark) for case in certificate.cases if case.outputs[0].remark]
    assert len(wrong) < len(certificate.cases)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_honest_ones_pass(name: str, made: Callable[..., Any]) -> None:
    """The faults make the tests fail, nothing else."""
    certificate = verify(*made(name), VerifySettings(seconds=600)).certificate
    assert certificate.passed, certificate.failures()
    said = next(check.detail for check in certificate.checks if check.name == "cases")
    assert "left out" not in said
    assert name != "words" or "every one of 700 ids" in said


def test_an_int8_model_times_1000_for_large_inputs_fails(made: Callable[..., Any], tmp_path: Path) -> None:
    """Few digits are left in 8 bits at such norms, but a thousandfold is no rounding."""
    from osa_runtime.quantization import quantize

    artifact, checkpoint = made("vit")
    quantize(artifact, tmp_path / "w8")
    honest = verify(tmp_path / "w8", checkpoint, VerifySettings(seconds=5)).certificate
    assert not any(case.verdict == "fail" for case in honest.cases), honest.failures()
    broken = broken_onnx(tmp_path / "w8", tmp_path / "broken", lambda m: changed_output(m, large_rows(m, 8.0), 1000.0))
    certificate = verify(broken, checkpoint, VerifySettings(seconds=5)).certificate
    failed = {case.kind for case in certificate.cases if case.verdict == "fail"}
    assert {"large", "scaled 64"} <= failed


def test_quick_leaves_the_grid_out_and_says_nothing_of_time(made: Callable[..., Any]) -> None:
    artifact, checkpoint = made("vit")
    quick = verify(artifact, checkpoint, VerifySettings(quick=True)).certificate
    short = verify(artifact, checkpoint, VerifySettings(seconds=0.0)).certificate
    assert len(quick.cases) == len(short.cases)
    details = [next(c.detail for c in run.checks if c.name == "cases") for run in (quick, short)]
    assert ["left out for time" in detail for detail in details] == [False, True]
