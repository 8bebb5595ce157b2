"""Masks, NaN and Inf, exponents out of range, and arguments that do not fit."""

from __future__ import annotations

import time

import pytest
import torch

from exponents import normal, relative_error, scale_for
from osa_runtime.errors import ExponentRangeError, InputError
from osa_runtime.ops import orthogonal_attention, reference

FORMS = ["dense", "lowrank"]


def inputs(*lead: int, tokens: int = 20, width: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tuple(normal(*lead, tokens, width, seed=seed) for seed in (1, 2, 3))  # type: ignore[return-value]


@pytest.mark.parametrize("form", FORMS)
def test_masked_tokens_pass_through_and_influence_nobody(form: str) -> None:
    q, k, v = inputs(2, 3)
    mask = torch.rand(2, 1, 20, generator=torch.Generator().manual_seed(0)) > 0.3
    out = orthogonal_attention(q, k, v, 0.1, mask=mask, form=form)
    padded = ~mask.expand(2, 3, 20)
    assert torch.equal(out[padded], v[padded])
    for filling in (0.0, 1e6, float("nan"), float("inf")):
        q2, k2, v2 = (x.masked_fill(padded[..., None], filling) for x in (q, k, v))
        assert torch.equal(orthogonal_attention(q2, k2, v2, 0.1, mask=mask, form=form)[~padded], out[~padded])
    expected = reference.orthogonal_attention(q, k, v, 0.1, mask)
    assert float(relative_error(out, expected).max()) < 2e-6


@pytest.mark.parametrize("form", FORMS)
def test_a_padded_batch_equals_its_unpadded_sequences(form: str) -> None:
    lengths = [1, 7, 20]
    q, k, v = inputs(3)
    mask = torch.arange(20) < torch.tensor(lengths)[:, None]
    out = orthogonal_attention(q, k, v, 0.2, mask=mask, form=form)
    for i, n in enumerate(lengths):
        alone = orthogonal_attention(q[i, :n], k[i, :n], v[i, :n], 0.2, form=form)
        torch.testing.assert_close(out[i, :n], alone, rtol=0, atol=2e-6)


@pytest.mark.parametrize("form", FORMS)
def test_a_fully_padded_entry_is_untouched(form: str) -> None:
    q, k, v = inputs(2)
    mask = torch.tensor([[True], [False]]).expand(2, 20)
    assert torch.equal(orthogonal_attention(q, k, v, 0.1, mask=mask, form=form)[1], v[1])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_nan_and_inf_come_out_as_nan_in_their_entry_alone(where: str, bad: float, form: str) -> None:
    q, k, v = inputs(3)
    clean = orthogonal_attention(q, k, v, 0.1, form=form)
    {"q": q, "k": k, "v": v}[where][1, 4, 2] = bad
    start = time.perf_counter()
    out = orthogonal_attention(q, k, v, 0.1, form=form)
    assert time.perf_counter() - start < 1.0
    if where == "v":
        assert bool(out[1, 4, 2].isnan())
    else:
        assert bool(out[1].isnan().all())
    for untouched in (0, 2):
        torch.testing.assert_close(out[untouched], clean[untouched], rtol=0, atol=2e-6)


@pytest.mark.parametrize("form", FORMS)
def test_nan_in_one_entry_does_not_hide_that_another_needs_more_precision(form: str) -> None:
    q, k, v = inputs(2, tokens=60)
    q[0, 0, 0] = float("nan")
    k[1] = q[1] + 1e-3 * k[1]
    scale = scale_for(q[1], k[1], 2.0).float()
    out = orthogonal_attention(q, k, v, scale, form=form)[1]
    assert float(relative_error(out, reference.orthogonal_attention(q[1], k[1], v[1], scale))) < 1e-3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_exponent_without_meaning_is_an_error(dtype: torch.dtype, form: str) -> None:
    q, k, v = (x.to(dtype) for x in inputs())
    too_large = 1e8 if dtype == torch.float32 else 1e16
    with pytest.raises(ExponentRangeError, match="no correct digits left"):
        orthogonal_attention(q, k, v, scale_for(q, k, too_large).to(dtype), form=form)


@pytest.mark.parametrize("form", FORMS)
def test_an_overflow_of_finite_inputs_is_an_error(form: str) -> None:
    q, k, v = inputs(tokens=40)
    for factor in (1e20, 1e30):
        with pytest.raises(ExponentRangeError):
            orthogonal_attention(q * factor, k * factor, v, 1.0, form=form)
        with pytest.raises(ExponentRangeError), torch.autocast("cpu", dtype=torch.bfloat16):
            orthogonal_attention(q * factor, k * factor, v, 1.0, form=form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("approximant", ["taylor", "pade"])
def test_fixed_squarings(form: str, approximant: str) -> None:
    q, k, v = inputs()
    scale = scale_for(q, k, 3.0).float()
    auto = orthogonal_attention(q, k, v, scale, form=form, approximant=approximant)
    fixed = orthogonal_attention(q, k, v, scale, form=form, approximant=approximant, squarings=5)
    torch.testing.assert_close(fixed, auto, rtol=0, atol=2e-6)
    with pytest.raises(ExponentRangeError, match="1 squarings are valid only for"):
        orthogonal_attention(q, k, v, scale, form=form, approximant=approximant, squarings=1)


def test_scale_may_be_a_number_or_one_value_per_head() -> None:
    q, k, v = inputs(2, 3)
    per_head = torch.tensor([0.02, 0.0, -0.04])
    out = orthogonal_attention(q, k, v, per_head)
    for head in range(3):
        alone = orthogonal_attention(q[:, head], k[:, head], v[:, head], float(per_head[head]))
        torch.testing.assert_close(out[:, head], alone, rtol=0, atol=1e-6)
    torch.testing.assert_close(out[:, 0], orthogonal_attention(q, k, v, torch.tensor(0.02))[:, 0], rtol=0, atol=1e-6)


def test_autocast_does_not_reach_the_core() -> None:
    q, k, v = inputs(tokens=60)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = orthogonal_attention(q, k, v, 0.1)
    assert torch.equal(inside, orthogonal_attention(q, k, v, 0.1))


def test_strided_views_are_accepted() -> None:
    packed = normal(2, 30, 3, 18)
    q, k, v = packed.transpose(1, 2).split(6, -1)
    expected = orthogonal_attention(q.contiguous(), k.contiguous(), v.contiguous(), 0.1)
    assert torch.equal(orthogonal_attention(q, k, v, 0.1), expected)


Q = torch.zeros(2, 3, 5, 4)
WRONG = {
    "not a tensor": (dict(q=[1.0]), "q must be a floating-point tensor, got list"),
    "integers": (dict(v=Q.long()), "v must be a floating-point tensor, got torch.int64"),
    "two dtypes": (dict(k=Q.double()), "must have one dtype"),
    "a vector": (dict(q=Q[0, 0, 0], k=Q[0, 0, 0], v=Q[0, 0, 0]), r"\(\.\.\., N, d\)"),
    "other d": (dict(k=Q[..., :3]), r"k \(2, 3, 5, 3\)"),
    "other N": (dict(v=Q[..., :4, :]), r"v \(2, 3, 4, 4\)"),
    "no tokens": (dict(q=Q[..., :0, :], k=Q[..., :0, :], v=Q[..., :0, :]), "No dimension may be empty"),
    "scale of text": (dict(scale="big"), "scale must be a number or a tensor, got str"),
    "scale of other heads": (dict(scale=torch.ones(4)), "does not broadcast over the leading dimensions"),
    "float mask": (dict(mask=torch.ones(2, 1, 5)), "mask must be a boolean tensor"),
    "mask of other length": (dict(mask=torch.ones(2, 1, 4).bool()), r"mask of shape \(2, 1, 4\) does not fit"),
    "mask without a head axis": (dict(mask=torch.ones(2, 5).bool()), r"as \(batch, 1, N\) does"),
    "unknown form": (dict(form="sparse"), "form must be one of auto, dense, lowrank, got 'sparse'"),
    "unknown approximant": (dict(approximant="magic"), "approximant must be one of taylor, pade"),
    "negative squarings": (dict(squarings=-1), "whole number from 0 to 46, got -1"),
    "squarings as text": (dict(squarings="many"), "squarings must be 'auto'"),
}


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_arguments_that_do_not_fit_are_named(case: str) -> None:
    changes, message = WRONG[case]
    arguments = {"q": Q, "k": Q, "v": Q, "scale": 1.0} | changes
    with pytest.raises(InputError, match=message):
        orthogonal_attention(**arguments)  # type: ignore[arg-type]
