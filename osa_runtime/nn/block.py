"""One block for every model: attention, then an MLP, with skips and norms only where they are asked for."""

from __future__ import annotations

from typing import Optional  # TorchScript reads these annotations and does not support X | Y

import torch
from torch import Tensor, nn

from osa_runtime.errors import ConfigError
from osa_runtime.nn.initialisation import activation_gain, semi_orthogonal

ACTIVATIONS = ("leaky_relu", "gelu")


class IsometricMLP(nn.Module):
    """x ← W₂·act(W₁x + b₁) + b₂ with act = g·LeakyReLU (or GELU).

    W₁ is semi-orthogonal and W₂ = O·W₁ᵀ with O orthogonal, so that without the activation x ↦ W₂W₁x is the
    rotation O; ``activation_gain`` returns the g that keeps the norm with it.
    """

    def __init__(self, dim: int, hidden: int, *, activation: str = "leaky_relu", slope: float = 0.5) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ConfigError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}.")
        self.expand, self.contract = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.leaky, self.slope, self.gain = activation == "leaky_relu", slope, activation_gain(slope, dim, hidden)
        with torch.no_grad():
            self.expand.weight.copy_(semi_orthogonal(hidden, dim))
            self.contract.weight.copy_(semi_orthogonal(dim, dim) @ self.expand.weight.mT)
            nn.init.zeros_(self.expand.bias)
            nn.init.zeros_(self.contract.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.expand(x)
        if self.leaky:
            x = nn.functional.leaky_relu(x, self.slope)
            if self.gain != 1.0:
                x = self.gain * x
        else:
            x = nn.functional.gelu(x)
        return self.contract(x)


class Block(nn.Module):
    """x ← MLP(attention(x)); with ``residual`` x ← x + … around each, with ``norm`` a LayerNorm before each."""

    def __init__(
        self, attention: nn.Module, mlp: IsometricMLP, dim: int, *, residual: bool = False, norm: bool = False
    ) -> None:
        super().__init__()
        self.attention, self.mlp, self.residual = attention, mlp, residual
        self.attention_norm = nn.LayerNorm(dim) if norm else nn.Identity()
        self.mlp_norm = nn.LayerNorm(dim) if norm else nn.Identity()

    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        mixed = self.attention(self.attention_norm(x), mask)
        x = x + mixed if self.residual else mixed
        changed = self.mlp(self.mlp_norm(x))
        return x + changed if self.residual else changed
