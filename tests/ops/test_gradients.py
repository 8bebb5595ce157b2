"""Gradients, checked against finite differences and against the gradient of the reference."""

from __future__ import annotations

import pytest
import torch

from exponents import normal, relative_error
from osa_runtime.ops import orthogonal_attention, reference, skew_exponential


@pytest.mark.parametrize("approximant", ["taylor", "pade"])
@pytest.mark.parametrize("form", ["dense", "lowrank"])
@pytest.mark.parametrize("tokens", [1, 3, 9], ids=lambda n: f"{n} tokens")
def test_gradcheck(form: str, approximant: str, tokens: int) -> None:
    q, k, v = (normal(2, tokens, 3, seed=s, dtype=torch.float64).requires_grad_() for s in (1, 2, 3))
    scale = torch.tensor([0.7, 0.2], dtype=torch.float64, requires_grad=True)
    mask = torch.ones(2, tokens, dtype=torch.bool)
    mask[1, tokens // 2 + 1 :] = False

    def attention(*x: torch.Tensor) -> torch.Tensor:
        return orthogonal_attention(*x, mask=mask, form=form, approximant=approximant)  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(attention, (q, k, v, scale))


@pytest.mark.parametrize("approximant", ["taylor", "pade"])
def test_gradcheck_of_the_exponential(approximant: str) -> None:
    m = normal(4, 4, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda m: skew_exponential(m - m.mT, approximant=approximant), (m,))


@pytest.mark.parametrize("form", ["dense", "lowrank"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_gradients_in_lower_precision(dtype: torch.dtype, form: str) -> None:
    leaves = [normal(2, 50, 8, seed=s, dtype=dtype).requires_grad_() for s in (1, 2, 3)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    weight = normal(2, 50, 8, seed=4)
    (orthogonal_attention(*leaves, 0.05, form=form).float() * weight).sum().backward()
    # eigh has no unique eigenvectors to differentiate; matrix_exp in float64 does it.
    s = 0.05 * (exact[0] @ exact[1].mT - exact[1] @ exact[0].mT)
    ((torch.linalg.matrix_exp(s) @ exact[2]) * weight.double()).sum().backward()
    for actual, expected in zip(leaves, exact, strict=True):
        assert actual.grad is not None
        assert expected.grad is not None
        assert actual.grad.dtype == dtype
        assert float(relative_error(actual.grad, expected.grad).max()) <= 40 * torch.finfo(dtype).eps


@pytest.mark.parametrize("form", ["dense", "lowrank"])
def test_gradients_exist_where_everything_is_zero(form: str) -> None:
    q, k = torch.zeros(1, 30, 4, requires_grad=True), torch.zeros(1, 30, 4, requires_grad=True)
    v = normal(1, 30, 4).requires_grad_()
    orthogonal_attention(q, k, v, 0.5, form=form).square().sum().backward()
    for leaf in (q, k, v):
        assert leaf.grad is not None
        assert bool(leaf.grad.isfinite().all())


def test_reference_shares_the_value() -> None:
    q, k, v = (normal(1, 12, 3, seed=s, dtype=torch.float64) for s in (1, 2, 3))
    torch.testing.assert_close(orthogonal_attention(q, k, v, 0.3), reference.orthogonal_attention(q, k, v, 0.3))
