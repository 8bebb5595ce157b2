"""An exported encoder is about as close to float64 as eager is, at lengths where rounding adds up over the tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from osa_runtime import EncoderConfig, SkiplessEncoder, load, save_checkpoint
from osa_runtime.exporters import export_checkpoint

pytestmark = pytest.mark.slow

SEEDS = 3
STEPS = 20


def _untrained() -> SkiplessEncoder:
    model = SkiplessEncoder(EncoderConfig(classes=10, vocabulary=50, max_length=1024, dim=64, depth=4, heads=2))
    with torch.no_grad():
        for block in model.stack.blocks:
            block.attention.alpha.fill_(0.1)  # a norm of S that grows to about 14, as in trained models of this length
    return model


def _trained() -> SkiplessEncoder:
    """To tell which of the ids is the most frequent one of the first ten, for a few steps."""
    model = _untrained()
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
    mask = torch.ones(8, 128, dtype=torch.bool)
    for _ in range(STEPS):
        ids = torch.randint(0, 50, (8, 128))
        labels = torch.nn.functional.one_hot(ids, 50).sum(1)[:, :10].argmax(1)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(ids, mask), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return model


def _distances(
    make: Callable[[], SkiplessEncoder], seed: int, lengths: tuple[int, ...], folder: Path
) -> list[tuple[float, float]]:
    torch.manual_seed(seed)
    model = make().eval()
    precise = copy.deepcopy(model).double()
    save_checkpoint(model, folder / "checkpoint")
    export_checkpoint(folder / "checkpoint", folder / "artifact", checked=False)
    found = []
    with load(folder / "artifact", device="cpu", threads=1) as session, torch.no_grad():
        for length in lengths:
            ids, mask = torch.randint(0, 50, (2, length)), torch.ones(2, length, dtype=torch.bool)
            truth = precise(ids, mask).numpy()
            exported = session.run({"tokens": ids.numpy(), "mask": mask.numpy()})["logits"]
            eager = model(ids, mask).numpy()
            found.append((np.abs(exported - truth).max(), np.abs(eager - truth).max()))
    return found


@pytest.mark.parametrize("make", [pytest.param(_untrained, marks=pytest.mark.long), _trained])
def test_no_further_than_eager(make: Callable[[], SkiplessEncoder], tmp_path: Path) -> None:
    lengths = (512, 1024)
    figures = np.array([_distances(make, seed, lengths, tmp_path / str(seed)) for seed in range(SEEDS)])
    ratios = np.median(figures[:, :, 0], 0) / np.median(figures[:, :, 1], 0)
    assert (ratios < 1.5).all(), dict(zip(lengths, ratios, strict=True))
