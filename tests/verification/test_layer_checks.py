"""The checks of one layer, on queries, keys and values made by hand: what passes, what fails, and for which reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from exponents import normal, scale_for
from osa_runtime.exponential import ExponentialMethod
from osa_runtime.manifest import AttentionSettings
from osa_runtime.ops.reference import orthogonal_attention
from osa_runtime.ops.scaling import reach
from osa_runtime.parity.certificate import CaseResult, LayerResult, OutputResult
from osa_runtime.parity.feeds import Case
from osa_runtime.parity.tolerances import core_tolerance
from osa_runtime.verification import layer_checks
from osa_runtime.verification.inside.model_parts import Array, Core
from osa_runtime.verification.layer_checks import (
    check_layers,
    norms_by_row,
    squarings_of,
    undecided_beyond_range,
)

CASE, NORM, HEADS, WIDTH = Case("random", {}, {}), 2.0, 3, 4
FEW = 12  # tokens for which A is formed whole in these tests
Applied = Callable[[Core, Array], Array]


def exact(core: Core, v: Array) -> Array:
    q, k, x, scale = (torch.from_numpy(np.array(part, np.float64)) for part in (core.q, core.k, v, core.scale))
    mask = None if core.mask is None else torch.from_numpy(core.mask)
    return orthogonal_attention(q, k, x, scale, mask).numpy().astype(np.float32)


@dataclass
class Layers:
    """Layers that show these cores, and apply their exponential honestly or not."""

    cores: Mapping[str, Core]
    applied: Applied = exact
    attentions: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.attentions = tuple(self.cores)

    def cores_of(self, names: Sequence[str], feeds: object) -> dict[str, Core]:
        return {name: self.cores[name] for name in names}

    def apply_attention(self, name: str, core: Core, v: Array) -> Array:
        return self.applied(core, v)


def core_of(tokens: int = 7, *, masked: bool = False, norm: float = NORM, **changes: Any) -> Core:
    q, k, v = (normal(2, HEADS, tokens, WIDTH, seed=seed) for seed in range(3))
    mask = np.arange(tokens) < np.array([tokens, (tokens + 1) // 2])[:, None, None] if masked else None
    q = q * (scale_for(q, k, norm) / 0.1).float()[..., None, None]
    core = Core(q.numpy(), k.numpy(), v.numpy(), np.full(HEADS, 0.1, np.float32), mask, v.numpy())
    return replace(replace(core, out=exact(core, core.v)), **changes)


def checked(core: Core, applied: Applied = exact, osa: AttentionSettings | None = None) -> LayerResult:
    (result,) = check_layers(Layers({"layer": core}, applied), CASE, osa, "fp32", "artifact")  # type: ignore[arg-type]
    return result


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 7, FEW, FEW + 1])
def test_an_honest_layer_passes(tokens: int, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_checks, "MOST_TOKENS", FEW)
    result = checked(core_of(tokens, masked=masked))
    assert result.passed, result.reason
    assert len(result.heads) == HEADS
    assert result.directions == (WIDTH if tokens > FEW else None)
    if tokens > 1 and not masked:
        assert all(0.99 * NORM <= head.norm <= NORM * (1 + 1e-6) for head in result.heads)
        assert result.bound * (1 + 1e-6) >= NORM
        assert result.tolerance == pytest.approx(core_tolerance("fp32", NORM))


def changed(values: Array, where: Any, factor: float) -> Array:
    copy = values.copy()
    copy[where] *= factor
    return copy


def test_any_head_of_any_entry_is_found_and_named() -> None:
    for entry in range(2):
        for head in range(HEADS):
            core = core_of(7)
            result = checked(replace(core, out=changed(core.out, (entry, head, 3, 1), 1.01)))
            assert not result.passed
            assert result.reason.startswith(f"head {head} is not exp(S)·V: relative error 0.0")


@pytest.mark.parametrize("most", [7, 6])
def test_an_operator_that_is_not_orthogonal_is_found(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_checks, "MOST_TOKENS", most)

    def stretched(core: Core, v: Array) -> Array:
        return changed(exact(core, v), (1, 2), 1.001)

    result = checked(core_of(7), stretched)
    assert result.reason.startswith("head 2 is not orthogonal: ‖AᵀA − I‖ is 0.002")
    assert not result.passed


def test_lengths_that_change_within_the_tolerance_of_values_are_found() -> None:
    """An error of less than the tolerance on each of many small values, next to a large one."""
    core = core_of(40)
    wanted = np.full_like(core.v, 40**-0.5)
    wanted[..., 0, 0] = 1
    honest = replace(core, v=exact(replace(core, scale=-core.scale), wanted), out=wanted)
    assert checked(honest).passed
    result = checked(replace(honest, out=wanted + np.float32(0.9 * core_tolerance("fp32", NORM))))
    assert not result.passed
    assert "does not keep lengths" in result.reason


def test_padded_tokens_are_not_judged_and_real_ones_are() -> None:
    core = core_of(9, masked=True)
    assert checked(replace(core, out=changed(core.out, (1, slice(None), slice(5, None)), 3.0))).passed
    assert not checked(replace(core, out=changed(core.out, (1, slice(None), 4), 3.0))).passed


def test_an_operator_without_numbers_fails() -> None:
    result = checked(core_of(), lambda core, v: exact(core, v) * np.float32(np.nan))
    assert not result.passed
    assert result.reason == "exp(S) of layer holds NaN or Inf for queries and keys of its own run."


def test_what_folds_is_right_for_its_values_rounded_or_not() -> None:
    core, other = core_of(7), core_of(7, norm=1.0)
    mine, theirs = ((one.q, one.k, one.v) for one in (core, other))
    assert checked(replace(core, rounded=theirs)).passed
    assert checked(replace(core, q=other.q, rounded=mine), lambda core_, v: exact(core, v)).passed
    assert not checked(replace(core, q=other.q, rounded=theirs), lambda core_, v: exact(core, v)).passed


@pytest.mark.parametrize(
    ("norm", "broken", "passed", "reason"),
    [
        (4.0, True, True, "it returns NaN, as it must"),
        (4.0, False, False, "but it returns finite values"),
        (1.0, True, False, "its output holds NaN or Inf"),
        (1.9, False, True, "orthogonal, and exp(S)·V"),
    ],
)
def test_beyond_its_range_a_layer_returns_nan_and_only_there(
    norm: float, broken: bool, passed: bool, reason: str
) -> None:
    core = core_of(7, norm=norm)
    out = changed(core.out, (0, 0, 0, 0), np.nan) if broken else core.out
    result = checked(replace(core, out=out), osa=AttentionSettings(form="dense", squarings=1, largest_norm=3.0))
    assert (result.passed, result.reason[-len(reason) :]) == (passed, reason)
    assert (result.squarings, bool(result.heads)) == (1, norm == 1.9)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_nan_that_came_in_is_told_from_nan_that_was_made(name: str) -> None:
    core = core_of()
    broken = replace(core, out=core.out * np.nan, **{name: changed(getattr(core, name), (1, 0, 0, 0), np.nan)})
    result = checked(broken, osa=AttentionSettings(largest_norm=1e-3))
    assert (result.passed, result.reason) == (False, "its input holds NaN or Inf")


@pytest.mark.parametrize("distance", [1e-6, 1.0])
@pytest.mark.parametrize("core", ["float32", "float64"])
def test_only_a_graph_without_float64_may_lose_its_digits(distance: float, core: str) -> None:
    one = core_of(40)
    k = 300 * one.q + np.float32(distance) * one.k
    result = checked(
        replace(one, k=k, out=one.out * np.nan), osa=AttentionSettings(squarings=8, form="lowrank", core=core)
    )
    lost = distance < 1 or core == "float32"
    assert result.passed == (core == "float32" and lost)
    assert ("S has lost its digits in float32" in result.reason) == result.passed


def test_nothing_is_said_of_layers_behind_nan() -> None:
    core = core_of()
    layers = Layers({"first": core, "second": replace(core, out=core.out * np.nan), "third": core})
    found = list(check_layers(layers, CASE, None, "fp32", "eager"))  # type: ignore[arg-type]
    assert [(result.layer, result.passed, result.party) for result in found] == [
        ("first", True, "eager"),
        ("second", False, "eager"),
    ]


def test_the_largest_norm_of_each_row() -> None:
    small, large = core_of(7, norm=0.5), core_of(7, norm=2.0)
    q = np.concatenate([small.q[:1], large.q[1:]])
    lost = changed(core_of(7, norm=9.0).q, (1, 0, 0, 0), np.nan)
    layers = Layers({"a": small, "b": replace(large, q=q), "c": replace(small, q=lost)})
    found = norms_by_row(layers, CASE)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, [9.0, 2.0], rtol=1e-5)
    only = norms_by_row(Layers({"c": replace(small, q=lost)}), CASE)  # type: ignore[arg-type]
    assert only is not None
    assert np.isnan(only[1])
    assert norms_by_row(Layers({}), CASE) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("approximant", ["taylor", "pade"])
@pytest.mark.parametrize(("tokens", "form"), [(2, "auto"), (3, "dense")])
def test_squarings_are_the_fewest_that_reach_the_norm(approximant: str, tokens: int, form: str) -> None:
    """Two tokens of one feature: the bound of ‖S‖ is ‖S‖ itself."""
    theta = reach(approximant, "dense", False)
    for least in range(4):
        for share, squarings in ((0.999, least), (1.001, least + 1)):
            q, k = torch.zeros(1, 1, tokens, 1), torch.zeros(1, 1, tokens, 1)
            q[..., 0, 0], k[..., 1, 0] = share * theta * 2**least, 1.0
            found = squarings_of(q, k, torch.ones(1, 1), ExponentialMethod(form, approximant))
            assert found == (squarings, pytest.approx(share * theta * 2**least))


@pytest.mark.parametrize(
    ("evaluation", "counts"),
    [(ExponentialMethod(), False), (ExponentialMethod("lowrank"), False), (ExponentialMethod("lowrank", "pade"), True)],
    ids=str,
)
def test_the_low_rank_form_takes_steps_instead(evaluation: ExponentialMethod, counts: bool) -> None:
    core = core_of(40, norm=4.0)
    q, k, scale = torch.from_numpy(core.q), torch.from_numpy(core.k), torch.full((2, HEADS), 0.1)
    squarings, bound = squarings_of(q, k, scale, evaluation)
    assert (squarings > 0) == counts
    assert bound * (1 + 1e-6) >= 4.0
    assert bound < 8.0


def test_the_squarings_of_the_artifact_come_before_those_of_the_formula() -> None:
    assert checked(core_of(squarings=7)).squarings == 7
    assert checked(core_of(), osa=AttentionSettings(form="lowrank", squarings=5)).squarings == 5
    assert checked(core_of(norm=20.0), osa=AttentionSettings(form="dense")).squarings > 1


def test_a_failure_beyond_the_range_is_undecided_and_no_other() -> None:
    osa = AttentionSettings(form="dense", squarings=1, largest_norm=3.0)
    core = core_of(7, norm=4.0)
    failed = CaseResult(
        "random",
        {},
        4.0,
        (OutputResult("logits", "fail", "NaN", 0.1), OutputResult("other", "pass", "", 0.1)),
    )

    def judged(core: Core, result: CaseResult = failed) -> CaseResult:
        return undecided_beyond_range(result, CASE, Layers({"layer": core}), osa, "fp32")  # type: ignore[arg-type]

    beyond = judged(replace(core, out=core.out * np.nan))
    assert [output.verdict for output in beyond.outputs] == ["undecided", "pass"]
    assert beyond.outputs[0].reason.startswith("layer: ‖S‖ is bounded by")
    assert judged(core) == failed, "it returns numbers"
    assert judged(core_of(7)) == failed, "within its range"
    nameless = replace(failed, outputs=(replace(failed.outputs[0], name=""),))
    assert judged(replace(core, out=core.out * np.nan), nameless) == nameless
