"""The reference of a quantised artifact, rounded as a fresh quantisation rounds it.

The effect of rounding a matrix on the answers is a property of the model, and no tolerance is right for all models.
With the same rounding on both sides, only arithmetic is left to compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx.numpy_helper import to_array
from torch import Tensor, nn

from osa_runtime.exporters.eager import Eager, answer_of
from osa_runtime.exporters.folding import prepared
from osa_runtime.exporters.settings import ExportSettings
from osa_runtime.nn.projection import PackedProjection
from osa_runtime.parity.certificate import Check
from osa_runtime.parity.comparison import compare_arrays
from osa_runtime.parity.feeds import Case
from osa_runtime.parity.tolerances import SAMPLES, UNDECIDED_FACTOR, rounding_move
from osa_runtime.quantization.weights import PRODUCTS

Array = NDArray[Any]
SLACK = 1e-3  # of a step: the rounding of a scale adds this to half a step


def rounded(module: nn.Module, plain: Path, quantized: Path) -> nn.Module | None:
    """The module with the matrices of ``quantized``, which was made from ``plain``, the module's export.

    Activations with ranges are rounded, too. Returns None if a matrix is not a parameter of the module but computed
    by it.
    """
    before, model = _tensors(onnx.load(plain)), onnx.load(quantized)
    after, steps = _tensors(model), dict(_activation_steps(model))
    matrices = {name: array for name, array in before.items() if f"{name}_quantized" in after and array.ndim == 2}
    changed = {name: _restored(name, array, after) for name, array in matrices.items()}
    names = {_key(matrix): (name, turned) for name in changed for turned, matrix in _ways_round(before[name])}
    ready, found = prepared(module, ExportSettings()), set[str]()
    for layer in ready.modules():
        for parameter in layer.parameters(recurse=False):
            name, turned = names.get(_key(parameter.numpy()), ("", False))
            matrix = changed.get(name)
            if matrix is not None:
                parameter.copy_(torch.from_numpy(matrix.T if turned else matrix))
                found.add(name)
                if name in steps and isinstance(layer, (nn.Linear, PackedProjection)):
                    layer.register_forward_pre_hook(
                        partial(_round_input, *(after[step].item() for step in steps[name]))
                    )
    return ready if found == set(changed) and all(x is not None for x in changed.values()) else None


def _activation_steps(model: onnx.ModelProto) -> Iterator[tuple[str, tuple[str, str]]]:
    """The names of the scale and the zero point of each weight's other factor."""
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        found = [makers.get(name) for name in node.input[:2]]
        if node.op_type in PRODUCTS and all(maker and maker.op_type == "DequantizeLinear" for maker in found):
            x, weight = (list(maker.input) for maker in found if maker is not None)
            yield weight[0].removesuffix("_quantized"), (x[1], x[2])


def _round_input(scale: float, zero: int, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Round to the range and cut off values beyond it; NaN and Inf become NaN."""
    x = inputs[0]
    steps = (torch.round(x / scale) + zero).clamp(0, 255) - zero
    return steps * scale + 0 * x, *inputs[1:]


def check_rounding(original: Eager, after: Eager, case: Case, tolerance: float | None) -> Check:
    """Measure how far the rounding moves the reference itself on a usual case.

    With ``tolerance``, the one for ranges that come with the artifact, the distance is judged: ranges that cut off or
    coarsen what the model computes move it by much more than 8 bits explain.
    """
    before, changed = answer_of(original, case.feeds), answer_of(after, case.feeds)
    if before is None or changed is None:
        return Check("rounding", tolerance is None, f"the reference does not run in float64 on the case {case.name}")
    moves = _distance(changed, before)
    said = f"the answers of the reference move by {moves:.2g} of the largest value in the case {case.name}"
    if tolerance is None:
        return Check("rounding", True, f"{said}, and are compared after it")
    runs = (original.moved(case.feeds, rounding_move("w8a8"), seed, True) for seed in range(SAMPLES))
    limit = UNDECIDED_FACTOR * max(tolerance, *(_distance(run, before) for run in runs))
    if moves <= limit:
        return Check("rounding", True, f"{said}, where 8 bits explain up to {limit:.2g}, and are compared after it")
    advice = "the recorded ranges do not fit such inputs; if they fit others, verify with data=… of that kind"
    return Check("rounding", False, f"{said}, where 8 bits explain up to {limit:.2g}: {advice}")


def _distance(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    return max(compare_arrays(found[name], expected[name], 0.0).error for name in expected)


def _tensors(model: onnx.ModelProto) -> dict[str, Array]:
    return {tensor.name: to_array(tensor) for tensor in model.graph.initializer}


def _ways_round(matrix: Array) -> Iterator[tuple[bool, Array]]:
    """The transpose and the matrix, in this order: a matrix that is its own transpose counts as it is."""
    yield True, matrix.T
    yield False, matrix


def _key(array: Array) -> tuple[tuple[int, ...], bytes]:
    return array.shape, array.tobytes()


def _restored(name: str, original: Array, after: Mapping[str, Array]) -> Array | None:
    """The values of the 8-bit weight, which has a scale for each row or column and may be transposed."""
    steps, scale = after[f"{name}_quantized"].astype(np.float32), after[f"{name}_scale"].ravel()
    for factors in (scale.reshape(1, -1), scale.reshape(-1, 1)):
        if any(size not in (1, whole) for size, whole in zip(factors.shape, steps.shape, strict=True)):
            continue
        for turned, matrix in _ways_round(steps * factors):
            limit = (0.5 + SLACK) * (factors.T if turned else factors)
            if matrix.shape == original.shape and np.all(np.abs(matrix - original) <= limit):
                return matrix
    return None
