"""The layers before and after the stack: linear maps, positions, and the classifier."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from osa_runtime.nn.initialisation import semi_orthogonal


def isometric_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear map that takes inputs of unit variance to outputs of unit variance."""
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        layer.weight.copy_(semi_orthogonal(outputs, inputs) * max(1.0, math.sqrt(outputs / inputs)))
        nn.init.zeros_(layer.bias)
    return layer


class StandardisedLinear(nn.Linear):
    """A linear map of (x - mean) / std. The buffers are not saved: the weights are those of the map alone."""

    mean: Tensor
    std: Tensor

    def __init__(self, linear: nn.Linear, mean: Tensor, std: Tensor) -> None:
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.register_buffer("mean", mean.to(linear.weight), persistent=False)
        self.register_buffer("std", std.to(linear.weight), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear((x - self.mean) / self.std, self.weight, self.bias)

    def folded(self) -> nn.Linear:
        """The same affine map with the standardisation folded in, computed in float64 and rounded once."""
        plain = nn.Linear(self.in_features, self.out_features, device="meta")
        weight = self.weight.double() / self.std.double()
        bias = self.bias.double() - weight @ self.mean.double()
        plain.weight, plain.bias = (nn.Parameter(x.to(self.weight), requires_grad=False) for x in (weight, bias))
        return plain


def classifier(dim: int, classes: int) -> nn.Linear:
    """A linear map whose logits start small, so that training starts near the uniform distribution."""
    layer = nn.Linear(dim, classes)
    with torch.no_grad():
        layer.weight.copy_(semi_orthogonal(classes, dim) * 0.1)
        nn.init.zeros_(layer.bias)
    return layer


def sinusoidal_positions(length: int, dim: int) -> Tensor:
    """The sines and cosines of Vaswani et al. (2017), (1, length, dim)."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = torch.exp(torch.arange(0, dim, 2, dtype=torch.float64) * (-math.log(10000.0) / dim))
    table = torch.zeros(length, dim, dtype=torch.float64)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency)[:, : dim // 2]
    return table[None].to(torch.get_default_dtype())
