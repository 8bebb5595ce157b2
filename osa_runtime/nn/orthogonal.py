"""Orthogonal self-attention as a layer (arXiv 2602.05996)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional, Self  # TorchScript reads these annotations and does not support X | Y

import torch
from torch import Tensor, nn

from osa_runtime.exponential import ExponentialMethod
from osa_runtime.nn.initialisation import default_alpha
from osa_runtime.nn.projection import PackedProjection, ProjectedAttention, check_sequence, merge_heads, split_heads
from osa_runtime.ops import orthogonal_attention
from osa_runtime.ops.folded import folded_attention, folding_pays, is_foldable
from osa_runtime.ops.folded_graph import folded_in_graph, surely_pays
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

    __constants__ = ("folds",)
    __jit_unused_properties__ = ("folds",)

    @property
    def folds(self) -> bool:
        """True if the output may be computed without queries, keys and values: nothing else may look at these."""
        plain = _is_plain(self.project, PackedProjection) and _is_plain(self.out, nn.Linear)
        return plain and is_foldable(self.evaluation())

    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        scale = self.alpha / self.project.width**0.5  # once: a program would keep what it does not need
        if torch.jit.is_scripting():
            if self.folds:  # decided when the layer is compiled
                whole = self._folded(x, scale, mask)
                if whole is not None:
                    return whole
        else:
            check_sequence(x, mask, self.project.dim)
            whole = self._whole(x, scale, mask)
            if whole is not None:
                return whole
        q, k, v = self.project(x)
        mixed = orthogonal_attention(
            q,
            k,
            v,
            scale,
            mask=None if mask is None else mask[:, None, :],
            form=self.form,
            approximant=self.approximant,
            squarings=self.squarings,
        )
        return self.out(merge_heads(mixed))

    def _folded(self, x: Tensor, scale: Tensor, mask: Optional[Tensor]) -> Optional[Tensor]:
        """The output where that is faster and no digits are lost, else None. float64 has limits of its own."""
        if x.dtype == torch.float64 or not folding_pays(x.size(1), self.project.dim, self.project.width):
            return None
        if x.size(0) == 0:
            return None  # which the operator refuses
        weight, out_weight = self.project.effective_weight().float(), self.out.weight.float()
        folded = folded_attention(x.float(), weight, out_weight, scale.float(), mask)
        return None if folded is None else folded.to(x.dtype)

    @torch.jit.unused
    def _whole(self, x: Tensor, scale: Tensor, mask: Optional[Tensor]) -> Optional[Tensor]:
        """The output without queries, keys and values, as an exporter, a captured program or eager mode has it."""
        if is_intercepted():
            if not (_is_plain(self.project, PackedProjection) and _is_plain(self.out, nn.Linear)):
                return None
            weight = self.project.effective_weight()
            return intercepted_layer(x, weight, self.out.weight, scale, mask, self.evaluation())
        exporting = torch.compiler.is_exporting()
        # First of all: sizes that a program records have no value.
        if not exporting and (torch.compiler.is_compiling() or torch.jit.is_tracing() or not has_values(x)):
            return None
        pays = surely_pays if exporting else folding_pays
        if not pays(x.size(1), self.project.dim, self.project.width) or not self.folds:
            return None
        if x.dtype == torch.float64 or torch.is_autocast_enabled(x.device.type):
            return None
        if not exporting:
            return self._folded(x, scale, mask)
        return folded_in_graph(x, self.project.effective_weight(), self.out.weight, scale, mask, self._by_parts)

    @torch.jit.unused
    def _by_parts(
        self, x: Tensor, weight: Tensor, out_weight: Tensor, scale: Tensor, mask: Optional[Tensor] = None
    ) -> Tensor:
        """The layer as a branch of a program, which takes its weights as arguments."""
        q, k, v = split_heads(nn.functional.linear(x, weight), self.project.heads)
        tokens = None if mask is None else mask[:, None, :]
        mixed = orthogonal_attention(q, k, v, scale, tokens, self.form, self.approximant, self.squarings)
        return nn.functional.linear(merge_heads(mixed), out_weight)


def _is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """True if calling the layer is what its class says: no subclass, no hooks, no bias."""
    hooked = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or "forward" in vars(layer)
    return type(layer) is kind and not hooked and getattr(layer, "bias", None) is None
