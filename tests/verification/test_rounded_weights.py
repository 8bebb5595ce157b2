"""The reference of a quantised model: its matrices rounded as the artifact has them, or none at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from torch import nn

from osa_runtime.exporters.eager import Eager
from osa_runtime.parity.feeds import Case
from osa_runtime.verification.rounded_weights import _restored, _round_input, check_rounding, rounded

Arrays = dict[str, np.ndarray]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)).requires_grad_(False)


def steps_of(matrix: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """The matrix in 8 bits, with a scale for each entry of the axis that is left."""
    scale = np.abs(matrix).max(axis, keepdims=True) / 127
    return np.round(matrix / scale).astype(np.int8), scale.astype(np.float32)


def written(path: Path, tensors: Arrays, nodes: list[onnx.NodeProto] | None = None) -> Path:
    weights = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in tensors.items()]
    onnx.save(helper.make_model(helper.make_graph(nodes or [], "g", [], [], weights)), path)
    return path


def files(module: nn.Sequential, folder: Path, turned: bool, axis: int, changes: Any = None) -> tuple[Path, Path]:
    """The export before and after: its matrices stand on the right of x, and 8-bit ones perhaps on the left."""
    plain = {f"{i}.w": layer.weight.numpy().T for i, layer in enumerate(module)}
    after: Arrays = {}
    for name, matrix in plain.items():
        after[f"{name}_quantized"], scale = steps_of(matrix.T if turned else matrix, axis)
        after[f"{name}_scale"] = scale.ravel()
    (changes or (lambda _: None))(after)
    return written(folder / "plain.onnx", plain), written(folder / "quantised.onnx", after)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("turned", [False, True])
def test_every_matrix_is_the_rounded_one(turned: bool, axis: int, tmp_path: Path) -> None:
    module = model()
    if not turned:  # one that is its own transpose counts as it is
        module[1].weight += module[1].weight.mT.clone()
    ready = rounded(module, *files(module, tmp_path, turned, axis))
    assert isinstance(ready, nn.Sequential)
    for before, after in zip(module, ready, strict=True):
        steps, scale = steps_of(before.weight.numpy() if turned else before.weight.numpy().T, axis)
        expected = steps * scale
        np.testing.assert_array_equal(after.weight.numpy(), expected if turned else expected.T)
        assert not torch.equal(before.weight, after.weight)
        assert torch.equal(before.bias, after.bias)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t["1.w_quantized"].__setitem__((0, 1), t["1.w_quantized"][0, 1] - 2),
        lambda t: t["2.w_scale"].__setitem__(0, 1.01 * t["2.w_scale"][0]),
        lambda t: t.__setitem__("0.w_scale", t["0.w_scale"][::-1].copy()),
        lambda t: t.__setitem__("0.w_quantized", -t["0.w_quantized"]),
        lambda t: t.__setitem__("0.w_quantized", t["0.w_quantized"][:, ::-1]),
    ],
    ids=["a step too far", "another scale", "scales in another order", "negated", "columns in another order"],
)
def test_a_matrix_that_is_not_the_model_s_own_rounded_is_no_reference(change: Any, tmp_path: Path) -> None:
    module = model()
    assert rounded(module, *files(module, tmp_path, False, 0, change)) is None


def test_a_matrix_that_the_module_computes_is_no_reference(tmp_path: Path) -> None:
    module = model()
    pair = files(module, tmp_path, False, 0)
    module[1].weight *= 1.5
    assert rounded(module, *pair) is None


def test_matrices_that_were_left_alone_stay(tmp_path: Path) -> None:
    module = model()
    ready = rounded(module, *files(module, tmp_path, False, 0, lambda t: (t.pop("1.w_quantized"), t.pop("1.w_scale"))))
    assert isinstance(ready, nn.Sequential)
    assert [torch.equal(a.weight, b.weight) for a, b in zip(module, ready, strict=True)] == [False, True, False]


@given(st.floats(1e-3, 10), st.integers(0, 255), st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=8))
def test_inputs_are_rounded_to_their_range_and_cut_off_beyond(scale: float, zero: int, values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    (found, extra) = _round_input(scale, zero, nn.Identity(), (x, x))
    low, high = -zero * scale, (255 - zero) * scale
    steps = found / scale + zero
    assert bool((steps - steps.round()).abs().max() < 1e-6)
    assert bool(((found >= low - 1e-9) & (found <= high + 1e-9)).all())
    inside = (x >= low) & (x <= high)
    assert bool(((found - x).abs()[inside] <= scale * (0.5 + 1e-6)).all())
    torch.testing.assert_close(found[~inside], x[~inside].clamp(low, high))
    assert extra is x


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_what_has_no_number_has_none_after_rounding(broken: float) -> None:
    (found,) = _round_input(0.1, 128, nn.Identity(), (torch.tensor([1.0, broken]),))
    assert found[1].isnan()
    assert found[0] == 1.0


def test_ranges_of_activations_round_the_inputs_of_their_own_layer(tmp_path: Path) -> None:
    module = model()
    plain, quantised = files(module, tmp_path, False, 0)
    after = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(quantised).graph.initializer}
    after |= {"x_scale": np.array(0.5, np.float32), "x_zero": np.array(3, np.uint8)}
    nodes = [
        helper.make_node("DequantizeLinear", ["x_steps", "x_scale", "x_zero"], ["x"]),
        helper.make_node("DequantizeLinear", ["2.w_quantized", "2.w_scale"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    ready = rounded(module, plain, written(tmp_path / "ranges.onnx", after, nodes))
    assert isinstance(ready, nn.Sequential)
    x = torch.tensor([[0.6, -9.0, 2.1, 0.2]])
    assert torch.equal(
        ready[2](x), nn.functional.linear(torch.tensor([[0.5, -1.5, 2.0, 0.0]]), ready[2].weight, ready[2].bias)
    )
    assert torch.equal(ready[1](x), nn.functional.linear(x, ready[1].weight, ready[1].bias))


def test_a_large_scale_and_one_for_all_are_tried_on_both_sides() -> None:
    matrix = np.array([[1.0, -2.0], [0.5, 2.0]], np.float32)
    steps, scale = np.round(matrix * 63.5).astype(np.int8), np.array([1 / 63.5], np.float32)
    found = _restored("w", matrix, {"w_quantized": steps, "w_scale": scale})
    np.testing.assert_array_equal(found, steps * scale)
    assert _restored("w", matrix, {"w_quantized": steps, "w_scale": np.ones(3, np.float32)}) is None


def check(after: nn.Module, tolerance: float | None) -> Any:
    module = model().eval()
    original, changed = (Eager(one, ["x"], ["y"], "fp64") for one in (module, after))
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    return check_rounding(original, changed, Case("random", {}, {"x": x}), tolerance)


@pytest.mark.parametrize(("factor", "passed"), [(1.0, True), (1.001, True), (1.5, False)])
def test_ranges_may_move_the_answers_as_far_as_8_bits_explain(factor: float, passed: bool) -> None:
    after = model().eval()
    after[2].weight *= factor
    found = check(after, 1e-6)
    assert (found.name, found.passed) == ("rounding", passed)
    assert ("the recorded ranges do not fit" in found.detail) is not passed
    assert check(after, None).passed
