"""torch.func, meta and fake tensors: no check and no branch may ask for values that are not there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad

from exponents import normal
from osa_runtime import OrthogonalSelfAttention, attention_matrix, orthogonal_attention, skew_exponential

TOKENS = (6, 40)  # dense, low rank


def mixed(q: Tensor, k: Tensor, v: Tensor, scale: float = 0.1) -> Tensor:
    return orthogonal_attention(q, k, v, scale)


def batch(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = normal(3, 4, tokens, 8, seed=tokens).unbind()
    sizes = torch.tensor([1e-3, 1.0, 8.0, 30.0])[:, None, None]  # float32, float64, and different squarings
    return q * sizes, k, v


@pytest.mark.parametrize("tokens", TOKENS)
def test_vmap_is_the_batch(tokens: int) -> None:
    torch.testing.assert_close(torch.func.vmap(mixed)(*batch(tokens)), mixed(*batch(tokens)))


@pytest.mark.parametrize("tokens", TOKENS)
def test_vmap_of_a_gradient_is_the_gradient_of_each_entry(tokens: int) -> None:
    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return mixed(q, k, v).square().sum() + mixed(q, k, v)[0].sum()

    together = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*batch(tokens))
    for row, entry in enumerate(zip(*batch(tokens), strict=True)):
        for mine, alone in zip(together, torch.func.grad(loss, argnums=(0, 1, 2))(*entry), strict=True):
            torch.testing.assert_close(mine[row], alone, rtol=1e-3, atol=1e-3)


def test_nested_vmap_and_the_layer() -> None:
    q, k, v = normal(3, 2, 3, 20, 4, seed=5).unbind()
    torch.testing.assert_close(torch.func.vmap(torch.func.vmap(mixed))(q, k, v), mixed(q, k, v))
    layer = OrthogonalSelfAttention(8, 2)
    x = normal(3, 2, 20, 8, seed=6)
    torch.testing.assert_close(torch.func.vmap(layer)(x), torch.stack([layer(y) for y in x]))


@pytest.mark.parametrize("tokens", [6, 40, 200], ids=["dense", "low rank", "folded"])
def test_forward_mode_is_the_same_in_both_spellings(tokens: int) -> None:
    layer, x = OrthogonalSelfAttention(8, 2), normal(2, tokens, 8).requires_grad_()
    _, expected = torch.func.jvp(layer, (x.detach(),), (torch.ones_like(x),))
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, torch.ones_like(x)))).tangent
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("tokens", TOKENS)
def test_meta_and_fake_tensors_have_the_shape_of_the_result(tokens: int) -> None:
    assert mixed(*(x.to("meta") for x in batch(tokens))).shape == (4, tokens, 8)
    with FakeTensorMode():
        q, k, v = torch.randn(3, 4, tokens, 8).unbind()
        assert mixed(q, k, v).shape == (4, tokens, 8)
        assert attention_matrix(q, k, 0.1).shape == (4, tokens, tokens)
        assert skew_exponential(torch.randn(5, 5)).shape == (5, 5)
