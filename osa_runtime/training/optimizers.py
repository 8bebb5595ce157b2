"""AdamW, and Muon for the matrices of the blocks; both are torch's own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from osa_runtime.training.settings import TrainingSettings


def make_optimizers(model: nn.Module, settings: TrainingSettings) -> list[torch.optim.Optimizer]:
    """AdamW for all parameters, or Muon for the matrices inside the blocks and AdamW for the rest.

    Muon makes the update of a matrix orthogonal. Its steps are scaled to the size of AdamW's, so that the same rates
    suit both; embedding, positions and classifier are not matrices between hidden features, and stay with AdamW.
    """
    assert settings.lr is not None, "settings must be resolved"
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if settings.optimizer == "adamw":
        return [_adamw(list(trained.values()), settings)]
    inner = [name for name, parameter in trained.items() if ".blocks." in name and parameter.ndim == 2]
    muon = torch.optim.Muon(
        [trained[name] for name in inner],
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    return [muon, _adamw([parameter for name, parameter in trained.items() if name not in inner], settings)]


def _adamw(parameters: Sequence[nn.Parameter], settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW that decays matrices only: shrinking a bias or the attention's scale regularises nothing."""
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    assert settings.lr is not None, "settings must be resolved"
    return torch.optim.AdamW(groups, lr=settings.lr)
