"""Our operator as a module in two layouts, exported to ONNX."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from osa_runtime import orthogonal_attention
from osa_runtime.exporters import export
from osa_runtime.nn.projection import merge_heads
from speed.attention_inputs import HEADS

PACKED, SEPARATE = "ours, packed", "ours, separate"
EXAMPLE_TOKENS = 7


class SeparateAttention(nn.Module):
    """q, k and v as three arrays (batch, heads, tokens, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((HEADS,), width**-0.5))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return orthogonal_attention(q, k, v, self.scale)


class PackedAttention(SeparateAttention):
    """As in a layer: one array (batch, tokens, heads·3·width) from the projection, and the heads merged at the end."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.width = width

    def forward(self, packed: Tensor) -> Tensor:  # type: ignore[override]  # the layout is the difference
        heads = packed.reshape(packed.size(0), packed.size(1), HEADS, 3 * self.width).transpose(1, 2)
        q, k, v = heads[..., : self.width], heads[..., self.width : 2 * self.width], heads[..., 2 * self.width :]
        return merge_heads(orthogonal_attention(q, k, v, self.scale))


def export_operator(layout: str, width: int, folder: Path) -> Path:
    """One graph for every batch and length; the folder of the artifact."""
    batch, tokens = torch.export.Dim("batch", min=1), torch.export.Dim("tokens", min=1)
    generator = torch.Generator().manual_seed(width)
    out = folder / f"{layout.rpartition(' ')[2]}-{width}"
    if layout == PACKED:
        packed = 0.1 * torch.randn(2, EXAMPLE_TOKENS, 3 * HEADS * width, generator=generator)
        export(PackedAttention(width), (packed,), out, dynamic_shapes={"packed": {0: batch, 1: tokens}})
    else:
        q, k, v = (0.1 * torch.randn(2, HEADS, EXAMPLE_TOKENS, width, generator=generator) for _ in range(3))
        axes = {name: {0: batch, 2: tokens} for name in "qkv"}
        export(SeparateAttention(width), (q, k, v), out, dynamic_shapes=axes)
    return out
