"""Run a module, or a model file that was just written, on tensors."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from osa_runtime.runtime.session import load

Array = NDArray[np.generic]
Run = Callable[[Sequence[Tensor]], list[Array]]


def eager_runner(module: nn.Module) -> Run:
    def run(inputs: Sequence[Tensor]) -> list[Array]:
        with torch.no_grad():
            outputs = module(*inputs)
        return [x.detach().cpu().numpy() for x in ([outputs] if isinstance(outputs, Tensor) else outputs)]

    return run


def artifact_runner(path: Path, names: Sequence[str]) -> Run:
    """In the runtime of its format; an ONNX file in onnx's own evaluator where ONNX Runtime is not installed."""
    if path.suffix == ".onnx" and importlib.util.find_spec("onnxruntime") is None:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(str(path))
        return lambda inputs: list(evaluator.run(None, _named(names, inputs)))
    session = load(path)
    return lambda inputs: list(session.run(_named(names, inputs)).values())


def _named(names: Sequence[str], inputs: Sequence[Tensor]) -> dict[str, Array]:
    return {name: x.detach().cpu().numpy() for name, x in zip(names, inputs, strict=True)}
