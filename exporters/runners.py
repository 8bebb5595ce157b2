"""Run an exported model once, to check it, with whatever its format needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from osa_runtime.exporters.quiet import quiet

Array = NDArray[np.generic]
Run = Callable[[Sequence[Tensor]], list[Array]]


def eager_runner(module: nn.Module) -> Run:
    def run(inputs: Sequence[Tensor]) -> list[Array]:
        with torch.no_grad():
            return arrays(module(*inputs))

    return run


def artifact_runner(path: Path, format: str, names: Sequence[str]) -> Run:
    return _onnx_runner(path, names) if format == "onnx" else _torch_runner(path, format)


def arrays(outputs: Tensor | Sequence[Tensor]) -> list[Array]:
    return [x.detach().cpu().numpy() for x in ([outputs] if isinstance(outputs, Tensor) else outputs)]


def _torch_runner(path: Path, format: str) -> Run:
    with quiet():
        module = torch.jit.load(str(path)) if format == "torchscript" else torch.export.load(path).module()
    return eager_runner(module)


def _onnx_runner(path: Path, names: Sequence[str]) -> Run:
    """ONNX Runtime where it is installed, otherwise onnx's own evaluator."""
    try:
        import onnxruntime
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        session = ReferenceEvaluator(str(path))
    else:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(inputs: Sequence[Tensor]) -> list[Array]:
        feeds = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
        return list(session.run(None, feeds))

    return run
