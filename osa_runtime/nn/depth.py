"""The depth of a module for rounding: the matrices that the signal may pass, in any kind of layer."""

from __future__ import annotations

from torch import nn


def matrix_count(module: nn.Module) -> int:
    return sum(parameter.dim() >= 2 for parameter in module.parameters())


def rounding_depth(module: nn.Module) -> int:
    """The depth of a model for the table of tolerances: rounding adds up over its matrices."""
    return max(4, matrix_count(module))
