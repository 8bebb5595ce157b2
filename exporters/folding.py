"""A copy of the module with everything folded into its weights that can be, so that it costs nothing at inference.

- spectral conditioning: W + λI becomes the weight;
- the gain of the MLP's activation becomes part of its second matrix;
- the standardisation of a ViT's pixels becomes part of the matrix and bias of its patches.

α/√d stays an input of the operator, where it costs nothing. In the rows of W_Q and W_K it would round each weight anew:
an error that all tokens share and that adds up in S, a sum over them (three times eager's error at 1024 tokens).
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import cast

import torch
from torch import Tensor, nn

from osa_runtime.exporters.settings import ExportSettings
from osa_runtime.models.embedding import StandardisedLinear
from osa_runtime.nn import IsometricMLP, OrthogonalSelfAttention
from osa_runtime.nn.projection import PackedProjection


def prepared(module: nn.Module, settings: ExportSettings) -> nn.Module:
    """An evaluation copy in the exported type, folded, with the settings applied to its OSA layers."""
    ready = copy.deepcopy(module).eval().requires_grad_(False)
    owners = Counter(child for layer in ready.modules() for child in layer._modules.values() if child is not None)
    for layer in ready.modules():
        if _is_plain(layer, PackedProjection):
            _fold_conditioning(cast(PackedProjection, layer))
    for layer in ready.modules():
        if _is_plain(layer, IsometricMLP) and _is_own(layer.contract, nn.Linear, owners) and layer.leaky:
            _fold_gain(cast(IsometricMLP, layer))
        for name, child in layer._modules.items():
            if _is_plain(child, StandardisedLinear):
                layer._modules[name] = cast(StandardisedLinear, child).folded()
        if isinstance(layer, OrthogonalSelfAttention):
            _apply_settings(layer, settings)
    return in_type(ready, settings)


def _is_plain(layer: object, kind: type[nn.Module]) -> bool:
    """True if the module has exactly this type and no hooks; a subclass may use its weights differently."""
    return (
        type(layer) is kind
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        and "forward" not in vars(layer)
    )


def _is_own(part: object, kind: type[nn.Module], owners: Counter[nn.Module]) -> bool:
    """True if only one layer uses this part; a shared part cannot absorb what belongs to one layer."""
    return isinstance(part, nn.Module) and _is_plain(part, kind) and owners[part] == 1


def in_type(module: nn.Module, settings: ExportSettings) -> nn.Module:
    return module.half() if settings.dtype == "fp16" else module


def _fixed(weight: Tensor) -> nn.Parameter:
    """A separate parameter: layers that share one must not fold into it twice."""
    return nn.Parameter(weight, requires_grad=False)


def _fold_conditioning(layer: PackedProjection) -> None:
    layer.weight = _fixed(layer.effective_weight().clone())
    layer.conditioned = False
    layer.correction = torch.zeros(0)


def _fold_gain(layer: IsometricMLP) -> None:
    layer.contract.weight = _fixed(layer.contract.weight * layer.gain)
    layer.gain = 1.0


def _apply_settings(layer: OrthogonalSelfAttention, settings: ExportSettings) -> None:
    layer.evaluate(settings.applied_to(layer.evaluation()))
