"""Queries, keys and values with a given ‖S‖₂, and the answers in float64."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from osa_runtime.ops.reference import orthonormal_core, skew_exponential

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

    @cached_property
    def packed(self) -> Tensor:
        """(batch, tokens, heads·3·width), head by head, as the projection of a layer makes it."""
        return torch.cat([self.q, self.k, self.v], -1).transpose(1, 2).flatten(2)

    @cached_property
    def merged(self) -> tuple[Tensor, Tensor, Tensor]:
        """Each (batch, tokens, heads·width), as ONNX Runtime's MultiHeadAttention takes them."""
        q, k, v = (x.transpose(1, 2).flatten(2) for x in (self.q, self.k, self.v))
        return q, k, v

    def exact_orthogonal(self) -> Tensor:
        """exp(S)·V in float64, through an orthonormal basis of [Q K] and the eigenvectors of the core."""
        out = torch.empty(self.v.shape, dtype=torch.float64)
        for entry in itertools.product(range(self.v.size(0)), range(self.v.size(1))):
            basis, core = _core(self.q[entry], self.k[entry])
            v = self.v[entry].double()
            change = skew_exponential(self.scale * core) - torch.eye(len(core), dtype=torch.float64)
            out[entry] = v + basis @ (change @ (basis.mT @ v))
        return out

    def exact_softmax(self) -> Tensor:
        """softmax(QKᵀ·scale)·V in float64."""
        out = torch.empty(self.v.shape, dtype=torch.float64)
        for entry in itertools.product(range(self.v.size(0)), range(self.v.size(1))):
            q, k, v = (x[entry].double() for x in (self.q, self.k, self.v))
            for start in range(0, len(q), SOFTMAX_ROWS):
                rows = slice(start, start + SOFTMAX_ROWS)
                out[entry][rows] = torch.softmax(self.scale * q[rows] @ k.mT, -1) @ v
        return out


def make_inputs(point: Point) -> Inputs:
    generator = torch.Generator().manual_seed(point.tokens + point.width)
    shape = (point.batch, HEADS, point.tokens, point.width)
    q, k, v = (torch.randn(shape, generator=generator) for _ in range(3))
    factor = (point.norm / spectral_norm(q, k, point.width**-0.5)) ** 0.5
    return Inputs(q * factor, k * factor, v)


def spectral_norm(q: Tensor, k: Tensor, scale: float) -> float:
    """The largest ‖scale·(QKᵀ − KQᵀ)‖₂ of all entries, from the cores of 2d × 2d."""
    pairs = zip(q.flatten(0, -3), k.flatten(0, -3), strict=True)
    return max(float(torch.linalg.matrix_norm(scale * _core(*pair)[1], 2)) for pair in pairs)


def relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def _core(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """B and BᵀSB in float64, without the scale, for one head."""
    return orthonormal_core(q.double(), k.double(), 1.0)
