"""The attention mechanisms by name. Their layers are imported when they are needed, because they need torch."""

from __future__ import annotations

import importlib
from typing import Any

MECHANISMS = {
    "osa": "orthogonal:OrthogonalSelfAttention",
    "softmax": "softmax:SoftmaxSelfAttention",
    "polynomial": "polynomial:PolynomialSelfAttention",
}


def mechanism(name: str) -> Any:
    """The class of the layer."""
    module, _, layer = MECHANISMS[name].partition(":")
    return getattr(importlib.import_module(f"osa_runtime.nn.{module}"), layer)
