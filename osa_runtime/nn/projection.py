"""Queries, keys and values of all heads from one matrix, and the checks of a layer's inputs."""

# No postponed annotations here: TorchScript must see the type of ``correction`` itself.

import inspect
from typing import Any, Self

import torch
from torch import Tensor, nn

from osa_runtime.errors import ConfigError, InputError
from osa_runtime.nn.initialisation import packed_projection, semi_orthogonal
from osa_runtime.ops.values import is_plain_eager

CONDITIONINGS = ("none", "spectral")


class PackedProjection(nn.Module):
    """x (batch, N, dim) → q, k, v, each (batch, heads, N, dim / heads).

    The rows of ``weight`` go head by head, [W_Q; W_K; W_V] in each, so that the product is [Q K V] per head with
    no copy. With spectral conditioning (arXiv 2603.07162) a fixed λI is added to each of W_Q, W_K and W_V; it is
    never trained, and ``effective_weight`` has it folded in. The trained part then starts at a tenth of λ, so
    that W + λI is well conditioned; an orthogonal W could come arbitrarily close to −λI.
    """

    correction: Tensor
    apart = False  # True for an attention that wants the heads one after the other in memory: one copy for all three

    def __init__(self, dim: int, heads: int, *, conditioning: str = "none", spectral_lambda: float = 1.0) -> None:
        super().__init__()
        _check(dim, heads, conditioning)
        self.dim, self.heads, self.width = dim, heads, dim // heads
        self.conditioned = conditioning == "spectral"
        start = 0.1 * spectral_lambda if self.conditioned else 1.0
        self.weight = nn.Parameter(start * packed_projection(dim, heads))
        correction = spectral_lambda * _packed_identity(dim, heads) if self.conditioned else torch.zeros(0)
        self.register_buffer("correction", correction, persistent=False)

    def effective_weight(self) -> Tensor:
        return self.weight + self.correction if self.conditioned else self.weight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        packed = nn.functional.linear(x, self.effective_weight())
        if not torch.jit.is_scripting():  # noqa: SIM102  # TorchScript skips the body only when this stands alone
            if is_plain_eager(x):
                per_head = _per_head(packed, self.heads)
                q, k, v = (per_head.contiguous() if self.apart else per_head).split(self.width, -1)  # one gradient
                return q, k, v
        return split_heads(packed, self.heads)


class ProjectedAttention(nn.Module):
    """The common part of the attention layers: packed input projections and an orthogonal output matrix."""

    def __init__(self, dim: int, heads: int, *, conditioning: str = "none", spectral_lambda: float = 1.0) -> None:
        super().__init__()
        self.project = PackedProjection(dim, heads, conditioning=conditioning, spectral_lambda=spectral_lambda)
        self.out = nn.Linear(dim, dim, bias=False)
        with torch.no_grad():
            self.out.weight.copy_(semi_orthogonal(dim, dim))

    @classmethod
    def of(cls, config: Any) -> Self:
        """The layer that a configuration describes: each argument is the configuration's field of that name."""
        return cls(**{name: getattr(config, name) for name in inspect.signature(cls).parameters})


def split_heads(packed: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """(batch, N, 3·dim) → q, k, v."""
    per_head = _per_head(packed, heads)
    width = per_head.size(-1) // 3
    return per_head[..., :width], per_head[..., width : 2 * width], per_head[..., 2 * width :]


def _per_head(packed: Tensor, heads: int) -> Tensor:
    return packed.reshape(packed.size(0), packed.size(1), heads, packed.size(2) // heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(batch, heads, N, d) → (batch, N, heads·d)."""
    return x.transpose(1, 2).flatten(2)


def _packed_identity(dim: int, heads: int) -> Tensor:
    """The identity for each of W_Q, W_K and W_V, in the packed row order."""
    identity = torch.eye(dim).reshape(heads, dim // heads, dim)
    return torch.cat([identity, identity, identity], 1).reshape(3 * dim, dim)


def _check(dim: int, heads: int, conditioning: str) -> None:
    if dim < 1 or heads < 1 or dim % heads:
        raise ConfigError(f"dim must be a positive multiple of heads, got dim={dim} and heads={heads}.")
    if conditioning not in CONDITIONINGS:
        raise ConfigError(f"conditioning must be one of {', '.join(CONDITIONINGS)}, got {conditioning!r}.")


def check_sequence(x: Tensor, mask: Tensor | None, dim: int) -> None:
    """Check for floats x (batch, N, dim) and a boolean mask (batch, N)."""
    if not isinstance(x, Tensor) or x.dim() != 3 or x.size(-1) != dim or not x.is_floating_point():
        raise InputError(f"Expected a floating-point tensor (batch, tokens, {dim}), got {describe(x)}.")
    if mask is not None:
        check_mask(mask, x.shape[:2])


def check_mask(mask: Tensor, shape: torch.Size) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise InputError(f"mask must be a boolean tensor, True for real tokens, got {describe(mask)}; use mask.bool().")
    if mask.shape != shape:
        raise InputError(f"mask must be (batch, tokens) = {tuple(shape)}, got {tuple(mask.shape)}.")


def describe(x: object) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
