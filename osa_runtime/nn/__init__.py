"""Layers: orthogonal self-attention and its peers, the MLP that keeps the signal's norm, and the block of both."""

from osa_runtime.nn.block import Block, IsometricMLP
from osa_runtime.nn.orthogonal import OrthogonalSelfAttention
from osa_runtime.nn.polynomial import PolynomialSelfAttention
from osa_runtime.nn.softmax import SoftmaxSelfAttention

__all__ = [
    "Block",
    "IsometricMLP",
    "OrthogonalSelfAttention",
    "PolynomialSelfAttention",
    "SoftmaxSelfAttention",
]
