"""Orthogonal Self-Attention: exact operators, skipless transformers, and their deployment.

Importing this package is cheap and needs neither torch nor ONNX Runtime: the members that need them, or numpy,
are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from osa_runtime.errors import (
    ArtifactError,
    CheckpointError,
    ConfigError,
    DataError,
    DeviceError,
    ExponentRangeError,
    ExportError,
    InputError,
    InterfaceError,
    MissingDependencyError,
    OsaError,
    RunError,
    StorageError,
)

if TYPE_CHECKING:
    from osa_runtime.evaluation import Evaluation, evaluate
    from osa_runtime.exporters import export, export_checkpoint
    from osa_runtime.models import (
        EncoderConfig,
        SkiplessEncoder,
        SkiplessViT,
        ViTConfig,
        load_checkpoint,
        save_checkpoint,
    )
    from osa_runtime.nn import OrthogonalSelfAttention, PolynomialSelfAttention, SoftmaxSelfAttention
    from osa_runtime.ops import attention_matrix, orthogonal_attention, skew_exponential
    from osa_runtime.pixels import Standardisation
    from osa_runtime.quantization import quantize
    from osa_runtime.runtime.session import Session, load
    from osa_runtime.verification import VerifySettings, compare, verify

__version__ = "0.1.0"

_HOME_OF = {
    "attention_matrix": "osa_runtime.ops",
    "orthogonal_attention": "osa_runtime.ops",
    "skew_exponential": "osa_runtime.ops",
    "OrthogonalSelfAttention": "osa_runtime.nn",
    "PolynomialSelfAttention": "osa_runtime.nn",
    "SoftmaxSelfAttention": "osa_runtime.nn",
    "EncoderConfig": "osa_runtime.models",
    "SkiplessEncoder": "osa_runtime.models",
    "SkiplessViT": "osa_runtime.models",
    "ViTConfig": "osa_runtime.models",
    "load_checkpoint": "osa_runtime.models",
    "save_checkpoint": "osa_runtime.models",
    "Standardisation": "osa_runtime.pixels",
    "export": "osa_runtime.exporters",
    "export_checkpoint": "osa_runtime.exporters",
    "quantize": "osa_runtime.quantization",
    "Session": "osa_runtime.runtime.session",
    "load": "osa_runtime.runtime.session",
    "Evaluation": "osa_runtime.evaluation",
    "evaluate": "osa_runtime.evaluation",
    "VerifySettings": "osa_runtime.verification",
    "compare": "osa_runtime.verification",
    "verify": "osa_runtime.verification",
}

__all__ = [
    "__version__",
    # operators
    "attention_matrix",
    "orthogonal_attention",
    "skew_exponential",
    # layers
    "OrthogonalSelfAttention",
    "PolynomialSelfAttention",
    "SoftmaxSelfAttention",
    # models
    "EncoderConfig",
    "SkiplessEncoder",
    "SkiplessViT",
    "ViTConfig",
    "load_checkpoint",
    "save_checkpoint",
    # images
    "Standardisation",
    # making artifacts
    "export",
    "export_checkpoint",
    "quantize",
    # running them
    "Session",
    "load",
    # checking them
    "Evaluation",
    "VerifySettings",
    "compare",
    "evaluate",
    "verify",
    # errors
    "ArtifactError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DeviceError",
    "ExponentRangeError",
    "ExportError",
    "InputError",
    "InterfaceError",
    "MissingDependencyError",
    "OsaError",
    "RunError",
    "StorageError",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        member = getattr(importlib.import_module(_HOME_OF[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in {"torch", "safetensors", "onnx", "onnxscript"}:
            raise
        from osa_runtime.environment import missing_package

        raise missing_package(f"osa_runtime.{name}", error.name, "export") from error
    globals()[name] = member
    return member


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
