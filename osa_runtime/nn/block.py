"""One block for every model: attention, then an MLP, with skips and norms only where they are asked for."""

from __future__ import annotations

from typing import Optional  # TorchScript reads these annotations and does not support X | Y

from torch import Tensor, nn

from osa_runtime.nn.mlp import IsometricMLP


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
