"""Orthogonal self-attention as a layer (arXiv 2602.05996)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional, Self  # TorchScript reads these annotations and does not support X | Y

import torch
from torch import Tensor, nn

from osa_runtime.exponential import ExponentialMethod
from osa_runtime.nn.initialisation import default_alpha
from osa_runtime.nn.projection import ProjectedAttention, check_sequence, merge_heads
from osa_runtime.ops import orthogonal_attention

FEW_TOKENS = 16  # the length for which a layer is initialised by default


class OrthogonalSelfAttention(ProjectedAttention):
    """x ← W_O · exp(α/√d · (QKᵀ − KQᵀ)) · V for each head, with packed projections and a learnable α per head.

    A drop-in for the attention of a custom block: ``forward(x, mask=None)`` with x (batch, N, dim) and a
    boolean mask (batch, N), True for real tokens. At the start the layer is close to an isometry of its input: the
    condition number of its Jacobian grows with α·N. For tokens of unit variance it stays below 2 up to 16 of them, and
    for more with ``alpha=default_alpha(N)`` (``osa_runtime.nn.initialisation``), as the models have it.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        alpha: float = default_alpha(FEW_TOKENS),
        conditioning: str = "none",
        spectral_lambda: float = 1.0,
        form: str = "auto",
        approximant: str = "taylor",
        squarings: str | int = "auto",
    ) -> None:
        super().__init__(dim, heads, conditioning=conditioning, spectral_lambda=spectral_lambda)
        self.alpha = nn.Parameter(torch.full((heads,), float(alpha)))
        self.evaluate(ExponentialMethod(form, approximant, squarings))

    @classmethod
    def of(cls, config: Any) -> Self:
        if config.alpha is None:
            config = replace(config, alpha=default_alpha(config.tokens))
        return super().of(config)

    def evaluation(self) -> ExponentialMethod:
        return ExponentialMethod(self.form, self.approximant, self.squarings)

    def evaluate(self, how: ExponentialMethod) -> None:
        """Evaluate the exponential by this method from now on. TorchScript takes plain attributes only."""
        self.form, self.approximant, self.squarings = how.form, how.approximant, how.squarings

    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        if not torch.jit.is_scripting():
            check_sequence(x, mask, self.project.dim)
        q, k, v = self.project(x)
        mixed = orthogonal_attention(
            q,
            k,
            v,
            self.alpha / self.project.width**0.5,
            mask=None if mask is None else mask[:, None, :],
            form=self.form,
            approximant=self.approximant,
            squarings=self.squarings,
        )
        return self.out(merge_heads(mixed))
