from __future__ import annotations

import pytest
import torch

from osa_runtime.nn import OrthogonalSelfAttention, SoftmaxSelfAttention
from osa_runtime.nn.spectral_conditioning import condition_from_svd, fold_corrections, svd_correction


@pytest.mark.parametrize("shape", [(5, 5), (3, 8), (2, 4, 7)], ids=str)
def test_the_correction_adds_lambda_to_every_singular_value(shape: tuple[int, ...]) -> None:
    weight = torch.randn(*shape, dtype=torch.float64)
    weight[..., 0, :] = 1e-9 * weight[..., 1, :]  # nearly singular
    before = torch.linalg.svdvals(weight)
    torch.testing.assert_close(torch.linalg.svdvals(weight + svd_correction(weight, 0.7)), before + 0.7)


@pytest.mark.parametrize("layer", [OrthogonalSelfAttention, SoftmaxSelfAttention])
@pytest.mark.parametrize("conditioning", ["none", "spectral"])
def test_folding_changes_no_answer_and_trains_no_correction(layer: type, conditioning: str) -> None:
    attention = layer(12, 3, conditioning=conditioning)
    x, weight = torch.randn(2, 5, 12), attention.project.weight.detach().clone()
    assert condition_from_svd(attention, 0.5) == 1
    assert torch.equal(attention.project.weight, weight)
    assert {name for name, _ in attention.named_parameters()} >= {"project.weight"}
    assert all("correction" not in name for name in attention.state_dict())
    corrected = attention(x)
    fold_corrections(attention)
    assert not attention.project.conditioned
    torch.testing.assert_close(attention(x), corrected)
