"""Gradients, checked against finite differences and against the gradient of the reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from exponents import normal, relative_error, scale_for
from osa_runtime.nn import OrthogonalSelfAttention
from osa_runtime.ops import orthogonal_attention, reference, skew_exponential
from osa_runtime.ops.chebyshev import near_phi1


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


@pytest.mark.parametrize("form", ["dense", "lowrank"])
def test_second_derivatives(form: str) -> None:
    q, v = (normal(2, 5, 2, seed=s, dtype=torch.float64).requires_grad_() for s in (1, 2))
    scale = torch.tensor([0.7, 0.2], dtype=torch.float64, requires_grad=True)

    def attention(q: Tensor, v: Tensor, scale: Tensor) -> Tensor:
        return orthogonal_attention(q, q * q, v, scale, form=form)  # k depends on q, too

    assert torch.autograd.gradgradcheck(attention, (q, v, scale))


def test_second_derivatives_of_the_polynomial() -> None:
    """The low-rank core of float32, which no float64 operator reaches."""
    m2, w, mw = (normal(2, 4, 4, seed=s, dtype=torch.float64).requires_grad_() for s in (1, 2, 3))
    assert torch.autograd.gradcheck(near_phi1, (m2, w, mw))
    assert torch.autograd.gradgradcheck(near_phi1, (m2, w, mw))


STRUCTURES = ["random", "a common mean", "almost parallel", "zero", "one token alone", "mixed norms"]


def structured(kind: str, tokens: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = normal(3, 3, tokens, 6, seed=seed).unbind()
    if kind == "a common mean":
        return q + 10, k + 10, v + 1
    if kind == "almost parallel":
        return q, 1.5 * q + 1e-3 * k, v
    if kind == "zero":
        return 0 * q, k, v
    if kind == "one token alone":
        return q * (torch.arange(tokens) == 0)[:, None], k, v
    if kind == "mixed norms":
        return q * torch.tensor([1e-6, 1.0, 20.0])[:, None, None], k, v
    return q, k, v


@pytest.mark.parametrize("kind", STRUCTURES)
@pytest.mark.parametrize(("form", "tokens"), [("dense", 1), ("dense", 11), ("lowrank", 11), ("lowrank", 40)])
def test_our_gradients_are_those_of_the_plain_path(
    kind: str, form: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a few eps of the largest gradient of an entry, more for larger ‖S‖."""
    for seed, norm in enumerate((1e-4, 0.3, 2.0, 4.0, 9.0)):
        q, k, v = (x.requires_grad_() for x in structured(kind, tokens, seed))
        scale = (norm / scale_norm(q, k)).float().requires_grad_()
        weight = normal(3, tokens, 6, seed=9)

        def gradients() -> list[Tensor]:
            out = orthogonal_attention(q, k, v, scale, form=form)  # noqa: B023  # called within the turn
            return [out, *torch.autograd.grad((out * weight).sum(), (q, k, v, scale))]  # noqa: B023

        ours = gradients()
        with monkeypatch.context() as patch:
            patch.setattr("osa_runtime.ops.dense.eager_dense", lambda *_: None)
            patch.setattr("osa_runtime.ops.recomputation.is_differentiated", lambda *_: False)
            plain = gradients()
        for name, a, b in zip(("out", "q", "k", "v", "scale"), ours, plain, strict=True):
            size = b.detach().abs().amax().clamp(min=1e-30)
            if name == "scale":  # scale·d(scale) = ⟨dQ, Q⟩, a sum whose terms may cancel
                size = torch.maximum(size, (plain[1] * q).detach().abs().sum() / scale.detach())
            assert (
                float((a - b).detach().abs().amax() / size) <= 60 * max(1.0, norm) * torch.finfo(torch.float32).eps
            ), name


def scale_norm(q: Tensor, k: Tensor) -> Tensor:
    """‖QKᵀ − KQᵀ‖₂ of the largest entry, 1 where it is zero."""
    found = 1 / scale_for(q.detach(), k.detach(), 1.0)
    return found.amax()


@pytest.mark.parametrize("tokens", [6, 40])
def test_the_gradient_of_a_scale_of_zero(tokens: int) -> None:
    q, k, v = normal(3, 2, tokens, 4, seed=tokens).unbind()
    scale = torch.tensor([0.0, 1e-30], requires_grad=True)
    weight = normal(2, tokens, 4, seed=7)
    (found,) = torch.autograd.grad((orthogonal_attention(q, k, v, scale) * weight).sum(), scale)
    products = q @ k.mT
    torch.testing.assert_close(found, (((products - products.mT) @ v) * weight).sum((-2, -1)), rtol=1e-4, atol=1e-3)


def test_nan_in_one_entry_stays_there() -> None:
    for tokens in (6, 40):
        q, k, v = normal(3, 3, tokens, 8, seed=tokens).unbind()
        q[1, 0, 0] = float("nan")
        leaves = [x.requires_grad_() for x in (q, k, v)]
        out = orthogonal_attention(*leaves, 0.1)
        found = torch.autograd.grad(out.square().sum() + out.sum(), leaves)
        for x in (out, *found):
            assert bool(x[[0, 2]].isfinite().all())
            assert bool(x[1].isnan().any())


def kept_by(function: Callable[[], Tensor]) -> int:
    """The numbers that are kept for the backward pass, without those that the caller has anyway."""
    kept = {}

    def pack(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        function()
    return sum(kept.values())


def test_the_lowrank_form_keeps_its_inputs_and_what_is_small() -> None:
    """Five products of Q, K and V, and the two factors that they lead to: nothing of the polynomial."""
    q, k, v = (normal(2, 40, 4, seed=s).requires_grad_() for s in (1, 2, 3))
    assert kept_by(lambda: orthogonal_attention(q, k, v, 0.05)) <= 3 * q.numel() + 2 * 7 * 4 * 4 + 8


def test_the_folded_layer_keeps_its_input_and_what_is_small() -> None:
    """The centred input, C, T and rows of its mean: no queries, keys or values, and nothing of the polynomial."""
    layer, x = OrthogonalSelfAttention(8, 2), normal(2, 200, 8).requires_grad_()
    weights = sum(p.numel() for p in layer.parameters())
    assert kept_by(lambda: layer(x)) <= x.numel() + weights + 2 * (2 * 8 * 8 + 3 * 8 + 8)


def test_our_gradients_of_the_folded_layer_are_those_of_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """With second derivatives, and with padding."""
    layer, x = OrthogonalSelfAttention(8, 2, alpha=0.02), normal(2, 200, 8).requires_grad_()
    mask = torch.arange(200) < torch.tensor([[200], [150]])

    def gradients() -> list[Tensor]:
        leaves = [x, *layer.parameters()]
        first = torch.autograd.grad(layer(x, mask).pow(3).sum(), leaves, create_graph=True)
        return [*first, *torch.autograd.grad(sum(g.square().sum() for g in first), leaves)]

    ours = gradients()
    monkeypatch.setattr("osa_runtime.ops.recomputation.is_differentiated", lambda *_: False)
    for a, b in zip(ours, gradients(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.detach().abs().amax()))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("tokens", [6, 40, 200], ids=["dense", "low rank", "folded"])
def test_a_layer_inside_a_checkpoint(tokens: int, reentrant: bool) -> None:
    layer, x = OrthogonalSelfAttention(8, 2), normal(2, tokens, 8).requires_grad_()
    layer(x).pow(3).sum().backward()
    expected = [p.grad for p in (x, *layer.parameters())]
    layer.zero_grad()
    x.grad = None
    checkpoint(layer, x, use_reentrant=reentrant).pow(3).sum().backward()
    torch.testing.assert_close([p.grad for p in (x, *layer.parameters())], expected)


@pytest.mark.parametrize("tokens", [6, 40])
def test_jacrev_is_the_jacobian(tokens: int) -> None:
    q, k, v = normal(3, tokens, 3, seed=tokens).unbind()
    found = torch.func.jacrev(lambda q: orthogonal_attention(q, k, v, 0.1))(q)
    expected = torch.autograd.functional.jacobian(lambda q: orthogonal_attention(q, k, v, 0.1), q)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
