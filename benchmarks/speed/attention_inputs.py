"""Queries, keys and values with a given ‖S‖₂, and the answers in float64."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from osa_runtime.ops.reference import lowrank_orthogonal_attention, orthonormal_core

HEADS = 6
TRAINED_NORM = 2.0  # trained models have ‖S‖₂ of 1 to 3
SOFTMAX_ROWS = 1024  # at a time, so that a reference of long sequences fits into memory


class Point(NamedTuple):
    batch: int
    tokens: int
    width: int
    norm: float = TRAINED_NORM

    def __str__(self) -> str:
        norm = "" if self.norm == TRAINED_NORM else f", ‖S‖ = {self.norm:g}"
        return f"batch {self.batch}, {self.tokens} tokens, d = {self.width}{norm}"


@dataclass(frozen=True)
class Inputs:
    """q, k and v are (batch, heads, tokens, width); the largest ‖scale·(QKᵀ − KQᵀ)‖₂ is the point's norm."""

    q: Tensor
    k: Tensor
    v: Tensor

    @property
    def scale(self) -> float:
        return self.q.size(-1) ** -0.5

    @property
    def by_head(self) -> dict[str, Tensor]:
        return {"q": self.q, "k": self.k, "v": self.v}

    @cached_property
    def packed(self) -> Tensor:
        """(batch, tokens, heads·3·width), head by head, as the projection of a layer makes it."""
        return torch.cat([self.q, self.k, self.v], -1).transpose(1, 2).flatten(2)

    @cached_property
    def merged(self) -> dict[str, Tensor]:
        """Each (batch, tokens, heads·width), as ONNX Runtime's MultiHeadAttention takes them."""
        return {name: x.transpose(1, 2).flatten(2) for name, x in self.by_head.items()}

    def exact_orthogonal(self) -> Tensor:
        """exp(S)·V in float64, head by head, since long sequences need much memory."""
        heads = zip(*(x.flatten(0, 1) for x in (self.q, self.k, self.v)), strict=True)
        return torch.stack([lowrank_orthogonal_attention(*head, self.scale) for head in heads]).view(self.v.shape)

    def exact_softmax(self) -> Tensor:
        """softmax(QKᵀ·scale)·V in float64."""
        k, v = self.k.double().mT, self.v.double()
        parts = self.q.double().split(SOFTMAX_ROWS, -2)
        return torch.cat([torch.softmax(self.scale * part @ k, -1) @ v for part in parts], -2)


def make_inputs(point: Point) -> Inputs:
    generator = torch.Generator().manual_seed(point.tokens + point.width)
    shape = (point.batch, HEADS, point.tokens, point.width)
    q, k, v = (torch.randn(shape, generator=generator) for _ in range(3))
    factor = (point.norm / spectral_norm(q, k, point.width**-0.5)) ** 0.5
    return Inputs(q * factor, k * factor, v)


def spectral_norm(q: Tensor, k: Tensor, scale: float) -> float:
    """The largest ‖scale·(QKᵀ − KQᵀ)‖₂ of all entries, from the cores of 2d × 2d."""
    return float(torch.linalg.matrix_norm(orthonormal_core(q.double(), k.double(), scale)[1], 2).max())
