"""The stack of blocks that a configuration describes."""

from __future__ import annotations

from typing import Optional  # TorchScript reads these annotations and does not support X | Y

from torch import Tensor, nn

from osa_runtime.mechanisms import mechanism
from osa_runtime.models.config import BlockConfig
from osa_runtime.nn import Block, IsometricMLP
from osa_runtime.nn.initialisation import default_slope


class Stack(nn.Module):
    """Blocks in a row, and a final LayerNorm where the configuration has norms."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.dim) if config.norm else nn.Identity()

    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)


def _block(config: BlockConfig) -> Block:
    slope = default_slope(config.depth) if config.slope is None else config.slope
    hidden = max(1, round(config.mlp_ratio * config.dim))
    mlp = IsometricMLP(config.dim, hidden, activation=config.activation, slope=slope)
    return Block(mechanism(config.attention).of(config), mlp, config.dim, residual=config.residual, norm=config.norm)
