"""A copy of the module with everything folded into its weights that can be: nothing of it costs at inference.

- spectral conditioning: W + λI becomes the weight;
- the gain of the MLP's activation becomes part of its second matrix;
- α/√d: |c|^½ goes into the rows of W_Q and W_K of its head, the sign into W_Q, and the scale that is left is 1.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from osa_runtime.exporters.settings import ExportSettings
from osa_runtime.nn import IsometricMLP, OrthogonalSelfAttention
from osa_runtime.nn.projection import PackedProjection


def prepared(module: nn.Module, settings: ExportSettings) -> nn.Module:
    """An evaluation copy in the exported type, folded, with the settings applied to its OSA layers."""
    ready = copy.deepcopy(module).eval().requires_grad_(False)
    for layer in ready.modules():
        if isinstance(layer, PackedProjection):
            _fold_conditioning(layer)
        if isinstance(layer, IsometricMLP) and layer.leaky:
            layer.contract.weight.mul_(layer.gain)
            layer.gain = 1.0
    for layer in ready.modules():
        if isinstance(layer, OrthogonalSelfAttention):
            _fold_scale(layer)
            _apply_settings(layer, settings)
    return ready.half() if settings.dtype == "fp16" else ready


def _fold_conditioning(layer: PackedProjection) -> None:
    layer.weight.copy_(layer.effective_weight())
    layer.conditioned = False
    layer.correction = torch.zeros(0)


def _fold_scale(layer: OrthogonalSelfAttention) -> None:
    width, heads = layer.project.width, layer.project.heads
    scale = layer.alpha / width**0.5
    rows = layer.project.weight.view(heads, 3, width, -1)
    root = scale.abs().sqrt()[:, None, None]
    rows[:, 0] *= root * torch.where(scale < 0, -1.0, 1.0)[:, None, None]
    rows[:, 1] *= root
    layer.alpha.fill_(width**0.5)


def _apply_settings(layer: OrthogonalSelfAttention, settings: ExportSettings) -> None:
    layer.form = settings.form or layer.form
    layer.approximant = settings.approximant or layer.approximant
    layer.squarings = layer.squarings if settings.squarings is None else settings.squarings
