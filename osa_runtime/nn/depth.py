"""How deep a module is for rounding: the matrices that the signal may pass, whatever kind of layer holds them."""

from __future__ import annotations

from torch import nn


def matrix_count(module: nn.Module) -> int:
    return sum(parameter.dim() >= 2 for parameter in module.parameters())


def rounding_depth(module: nn.Module) -> int:
    """What the table of tolerances takes as the depth of a whole model: rounding adds up over its matrices."""
    return max(4, matrix_count(module))
