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

_MEMBERS = {
    "osa_runtime.ops": ("attention_matrix", "orthogonal_attention", "skew_exponential"),
    "osa_runtime.nn": ("OrthogonalSelfAttention", "PolynomialSelfAttention", "SoftmaxSelfAttention"),
    "osa_runtime.models": (
        "EncoderConfig", "SkiplessEncoder", "SkiplessViT", "ViTConfig", "load_checkpoint", "save_checkpoint",
    ),
    "osa_runtime.pixels": ("Standardisation",),
    "osa_runtime.exporters": ("export", "export_checkpoint"),
    "osa_runtime.quantization": ("quantize",),
    "osa_runtime.runtime.session": ("Session", "load"),
    "osa_runtime.evaluation": ("Evaluation", "evaluate"),
    "osa_runtime.verification": ("VerifySettings", "compare", "verify"),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _MEMBERS.items() for name in names}

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
