"""Orthogonal self-attention as a layer (arXiv 2602.05996)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional, Self  # TorchScript reads these annotations and does not support X | Y

import torch
from torch import Tensor, nn

from osa_runtime.exponential import ExponentialMethod
from osa_runtime.nn.initialisation import default_alpha
from osa_runtime.nn.projection import PackedProjection, ProjectedAttention, check_sequence, merge_heads
from osa_runtime.ops import orthogonal_attention
from osa_runtime.ops.folded import folded_attention, folding_pays, is_foldable
from osa_runtime.ops.interception import intercepted_layer, is_intercepted
from osa_runtime.ops.values import has_values

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
        self.project.apart = True
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
            whole = self._whole(x, mask)
            if whole is not None:
                return whole
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

    @torch.jit.unused
    def _whole(self, x: Tensor, mask: Optional[Tensor]) -> Optional[Tensor]:
        """The output without queries, keys and values, where that is faster and no digits are lost, else None.

        Captured and compiled programs have no such branch; an exporter may have a definition of its own of the layer.
        """
        if not (_is_plain(self.project, PackedProjection) and _is_plain(self.out, nn.Linear)):
            return None
        if not is_intercepted():
            # In this order: sizes that a program records have no value.
            if _is_recorded(x) or not is_foldable(self.evaluation()):
                return None
            if not folding_pays(x.size(1), self.project.dim, self.project.width):
                return None
        weight, scale = self.project.effective_weight(), self.alpha / self.project.width**0.5
        if is_intercepted():
            return intercepted_layer(x, weight, self.out.weight, scale, mask, self.evaluation())
        whole = folded_attention(x.float(), weight.float(), self.out.weight.float(), scale.float(), mask)
        return None if whole is None else whole.to(x.dtype)


def _is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """True if calling the layer is what its class says: no subclass, no hooks, no bias."""
    hooked = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or "forward" in vars(layer)
    return type(layer) is kind and not hooked and getattr(layer, "bias", None) is None


def _is_recorded(x: Tensor) -> bool:
    """True for float64, which has limits of its own, and where the operations are captured or cast by torch."""
    recorded = torch.compiler.is_compiling() or torch.jit.is_tracing() or not has_values(x)
    return recorded or x.dtype == torch.float64 or torch.is_autocast_enabled(x.device.type)
