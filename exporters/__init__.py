"""Exporters of trained models: ONNX with custom functions, TorchScript and torch.export.

    from osa_runtime.exporters import export
    artifact = export(module, (example,), "out", dynamic_shapes={"x": {0: "batch"}})

``build_functions`` returns the ``ai.osa`` function definitions, for graphs that are built by hand.
Members are imported when they are first used: inspecting an artifact needs onnx, but not torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osa_runtime.exporters.checkpoint_export import export_checkpoint
    from osa_runtime.exporters.functions import FunctionChoice, build_functions
    from osa_runtime.exporters.pipeline import export

__all__ = ["FunctionChoice", "build_functions", "export", "export_checkpoint"]

_HOMES = {
    "FunctionChoice": "functions",
    "build_functions": "functions",
    "export": "pipeline",
    "export_checkpoint": "checkpoint_export",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
