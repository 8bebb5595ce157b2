"""The folded layer: an answer within the documented tolerance of the definition in float64, or None. Never a third."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from exponents import normal
from osa_runtime.exponential import ExponentialMethod
from osa_runtime.nn import OrthogonalSelfAttention
from osa_runtime.ops import reference
from osa_runtime.ops.folded import centred, folded_attention, folding_pays, is_foldable

TOKENS = ("random", "mean", "offset", "rank one", "pixels", "outlier", "feature", "constant", "zero", "few")
WEIGHTS = ("random", "parallel keys", "blind to the mean", "unbalanced")


@dataclass(frozen=True, eq=False)
class Layer:
    """A batch of two, with orthogonal W_V and W_O, so that the values have the length of the tokens."""

    x: Tensor
    weight: Tensor
    out: Tensor
    scale: Tensor
    mask: Tensor | None

    def folded(self) -> Tensor | None:
        return folded_attention(self.x, self.weight, self.out, self.scale, self.mask)

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        heads = self.scale.size(0)
        rows = (self.x.double() @ self.weight.double().mT).unflatten(-1, (heads, -1)).transpose(1, 2)
        q, k, v = rows.chunk(3, -1)
        return q, k, v

    def truth(self) -> tuple[Tensor, float]:
        """The output in float64, and the largest ‖S‖."""
        q, k, v = self.parts()
        mask = None if self.mask is None else self.mask[:, None]
        mixed = reference.orthogonal_attention(q, k, v, self.scale.double(), mask)
        if mask is not None:
            q, k = (part.masked_fill(~mask[..., None], 0.0) for part in (q, k))
        s = self.scale.double()[:, None, None] * (q @ k.mT - k @ q.mT)
        return mixed.transpose(1, 2).flatten(2) @ self.out.double().mT, float(torch.linalg.matrix_norm(s, 2).max())


def tokens(kind: str, n: int, dim: int, size: float, generator: torch.Generator) -> Tensor:
    x, direction = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((2, n, dim), (dim,)))
    if kind == "mean":
        x = x.abs()
    if kind == "offset":
        x = x + size * direction
    if kind == "rank one":
        x = torch.randn(2, n, 1, generator=generator) * direction + x / size
    if kind == "pixels":
        x = (x.abs() * 100).round().clamp(max=255) / 255
    if kind == "outlier":
        x[:, n // 2] *= size
    if kind == "feature":
        x[..., 0] *= size
    return {"constant": direction.expand(2, n, dim), "zero": 0 * x, "few": x * (torch.arange(dim) == 0)}.get(kind, x)


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    dim, heads = draw(st.sampled_from([(2, 1), (6, 3), (8, 2), (12, 1), (32, 4)]))
    n = draw(st.sampled_from((1, 2, dim, 3 * dim + 1, 90, 200)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    size = 10.0 ** draw(st.floats(0, 5))
    x = tokens(draw(st.sampled_from(TOKENS)), n, dim, size, generator) * 10.0 ** draw(st.floats(-12, 8))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    layer = OrthogonalSelfAttention(dim, heads)
    weight = layer.project.weight.detach().unflatten(0, (heads, 3, -1)).clone()
    kind = draw(st.sampled_from(WEIGHTS))
    if kind == "parallel keys":
        weight[:, 1] = 1.5 * weight[:, 0] + weight[:, 1] / size
    if kind == "blind to the mean":
        mean = torch.nn.functional.normalize(x.float().mean((0, 1)), dim=0)
        weight[:, :2] -= (weight[:, :2] @ mean)[..., None] * mean
    if kind == "unbalanced":
        weight[:, 0] *= size
    mask = draw(st.sampled_from((None, "right", "left", "inside", "all of one")))
    real = None if mask is None else torch.ones(2, n, dtype=torch.bool)
    if real is not None:
        real[
            0, {"right": slice(n // 2, None), "left": slice(n // 2), "inside": slice(1, None, 3)}.get(mask, slice(0))
        ] = 0
        if mask == "all of one":
            real[1] = False
    made = Layer(x.float(), weight.flatten(0, 2), layer.out.weight.detach(), torch.ones(heads), real)
    _, norm = made.truth()
    scale = torch.linspace(1.0, 0.3, heads) * 10.0 ** draw(st.floats(-3, 1.5)) / max(norm, 1e-30)
    return Layer(made.x, made.weight, made.out, scale.float(), real)


@settings(max_examples=150)
@given(layer=layers())
def test_right_or_none(layer: Layer) -> None:
    out = layer.folded()
    if out is None:
        return
    expected, norm = layer.truth()
    size = (
        torch.linalg.matrix_norm(layer.x.double())
        if layer.mask is None
        else torch.linalg.matrix_norm(layer.x.double().masked_fill(~layer.mask[..., None], 0.0))
    )
    error = out.double() - expected
    if layer.mask is not None:
        padded = error.masked_fill(layer.mask[..., None], 0.0).abs()
        assert bool((padded <= 1e-5 * layer.x.double().abs().amax(-1, True)).all())
        error = error.masked_fill(~layer.mask[..., None], 0.0)
    tolerance = 2e-6 * max(1.0, norm / 4) * size
    assert bool((torch.linalg.matrix_norm(error) <= tolerance).all()), (torch.linalg.matrix_norm(error), tolerance)


@pytest.mark.parametrize("offset", [0.0, 1.0, 30.0, 1e3])
@pytest.mark.parametrize("norm", [0.3, 2.0, 5.0])
def test_tokens_dominated_by_their_mean_are_folded(offset: float, norm: float) -> None:
    torch.manual_seed(1)
    layer = OrthogonalSelfAttention(32, 4)
    x = normal(2, 300, 32) + offset * normal(32, seed=5)
    known = Layer(x, layer.project.weight.detach(), layer.out.weight.detach(), torch.ones(4), None)
    known = Layer(x, known.weight, known.out, torch.full((4,), norm / known.truth()[1]), None)
    out = known.folded()
    assert out is not None
    expected, _ = known.truth()
    assert float((out - expected).norm() / expected.norm()) < 1e-6 * max(1.0, norm / 4)


@pytest.mark.parametrize("n", [200, 500])
@pytest.mark.parametrize("value", [0.51, 0.73, 1.0])
def test_features_of_two_values(n: int, value: float) -> None:
    """Their squares round alike in C: four times the tolerance of the others (ops/README.md)."""
    torch.manual_seed(3)
    layer, x = OrthogonalSelfAttention(32, 4), normal(1, n, 32).sign() * value
    known = Layer(x, layer.project.weight.detach(), layer.out.weight.detach(), torch.ones(4), None)
    known = Layer(x, known.weight, known.out, torch.full((4,), 4 / known.truth()[1]), None)
    out = known.folded()
    assert out is not None
    assert float((out - known.truth()[0]).norm() / x.double().norm()) < 8e-6


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_what_is_not_finite_is_not_folded(bad: float) -> None:
    layer, x = OrthogonalSelfAttention(8, 2), normal(2, 100, 8)
    x[1, 3, 2] = bad
    assert folded_attention(x, layer.project.weight, layer.out.weight, layer.alpha) is None
    if bad != 1e30:
        out = layer(x)
        assert bool(out[0].isfinite().all())
        assert bool(out[1].isnan().all())


def test_padding_never_reaches_a_real_token() -> None:
    torch.manual_seed(0)
    layer, x = OrthogonalSelfAttention(8, 2, alpha=0.02), normal(3, 100, 8)
    mask = torch.arange(100) < torch.tensor([[100], [60], [1]])
    out = layer(x, mask)
    wild = layer(torch.where(mask[..., None], x, torch.full_like(x, float("nan"))), mask)
    assert torch.equal(out[mask], wild[mask])
    torch.testing.assert_close(out[1, :60], layer(x[1:2, :60])[0], rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_queries_keys_and_values() -> None:
    torch.manual_seed(0)
    layer = OrthogonalSelfAttention(8, 2, alpha=0.02).double()
    x = (normal(2, 60, 8) + 3 * normal(8, seed=1)).double().requires_grad_()
    mask = torch.rand(2, 60) < 0.7
    inputs = (x, layer.project.weight, layer.out.weight, layer.alpha)
    folded = folded_attention(x, layer.project.weight, layer.out.weight, layer.alpha / 2, mask)
    assert folded is not None
    for found, expected in zip(
        torch.autograd.grad(folded.sin().sum(), inputs),
        torch.autograd.grad(layer(x, mask).sin().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_the_layer_folds_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert folding_pays(1024, 256, 64)
    assert not folding_pays(256, 256, 64)
    assert not folding_pays(197, 384, 64)
    folded = []
    monkeypatch.setattr(
        "osa_runtime.nn.orthogonal.folded_attention", lambda *a: folded.append(folded_attention(*a)) or folded[-1]
    )
    layer = OrthogonalSelfAttention(8, 2)
    for size, expected in ((100, 1), (8, 0)):
        folded.clear()
        layer(normal(1, size, 8))
        assert len(folded) == expected
    for how in (
        ExponentialMethod("dense"),
        ExponentialMethod("lowrank", "pade"),
        ExponentialMethod("lowrank", squarings=4),
    ):
        assert not is_foldable(how)
        layer.evaluate(how)
        folded.clear()
        layer(normal(1, 100, 8))
        assert not folded


def test_hooks_on_the_projections_still_run() -> None:
    layer, seen = OrthogonalSelfAttention(8, 2), []
    layer.out.register_forward_hook(lambda *_: seen.append(1) and None)
    layer(normal(1, 100, 8))
    assert seen


def test_the_mean_has_few_digits() -> None:
    """Features of a few values keep few digits: with many, equal products are rounded alike and errors add up in C."""
    signs = normal(1, 500, 8).sign()
    x0, mean, rest, _ = centred(signs + 1, None)
    assert bool((mean == 1.0).all())
    torch.testing.assert_close(rest, x0.double().sum(1, True).float())
