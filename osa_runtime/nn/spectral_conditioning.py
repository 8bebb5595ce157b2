"""Spectral conditioning by the singular value decomposition (arXiv 2603.07162), for weights that stay as they are.

``PackedProjection`` has the paper's cheap form, λI, and starts its weights at a tenth of λ for it. The correction here
is the one that the paper derives: C = λ·U·Vᵀ of W = U·Σ·Vᵀ, with which W + C has the singular values σᵢ + λ, so that
its condition number is (σ₁ + λ)/(σₙ + λ) whatever W is. It is computed once, before training, and never trained.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from osa_runtime.nn.projection import PackedProjection


def svd_correction(weight: Tensor, spectral_lambda: float) -> Tensor:
    """λ·U·Vᵀ of each matrix (..., rows, columns); in float64, since tiny singular values have vectors too."""
    u, _, vh = torch.linalg.svd(weight.detach().double(), full_matrices=False)
    return (spectral_lambda * (u @ vh)).to(weight.dtype)


def condition_from_svd(model: nn.Module, spectral_lambda: float = 1.0) -> int:
    """Correct W_Q, W_K and W_V of each head in every attention layer of the model; returns the number of layers."""
    layers = [module for module in model.modules() if isinstance(module, PackedProjection)]
    for layer in layers:
        matrices = layer.effective_weight().detach().reshape(3 * layer.heads, layer.width, layer.dim)
        correction = svd_correction(matrices, spectral_lambda).reshape_as(layer.weight)
        if layer.conditioned:
            correction = correction + layer.correction
        layer.register_buffer("correction", correction, persistent=False)
        layer.conditioned = True
    return len(layers)


@torch.no_grad()
def fold_corrections(model: nn.Module) -> None:
    """Add every correction to the weights it corrects; the model returns what it did, and is trained no further."""
    for layer in model.modules():
        if isinstance(layer, PackedProjection) and layer.conditioned:
            layer.weight.copy_(layer.effective_weight())
            layer.register_buffer("correction", torch.zeros(0), persistent=False)
            layer.conditioned = False
