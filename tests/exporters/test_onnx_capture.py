"""Which node a call of the operator or of a layer becomes, and the one definition that all calls of a model share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from osa_runtime.errors import ExportError
from osa_runtime.exponential import ExponentialMethod
from osa_runtime.exporters import onnx_capture
from osa_runtime.exporters.functions import FunctionChoice
from osa_runtime.exporters.onnx_capture import LAYER_NODE, NODE, Calls, _common, _node
from osa_runtime.exporters.settings import ExportSettings
from osa_runtime.ops.coefficients import MOST_DENSE_TOKENS
from osa_runtime.ops.folded import fewest_tokens
from osa_runtime.ops.reference import orthogonal_attention

AUTO, FIXED, DENSE = ExponentialMethod(), ExponentialMethod("lowrank", squarings=3), ExponentialMethod("dense")


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[Tensor, ...]]]:
    """The nodes that are made, each of which answers as its definition would."""
    made: list[tuple[str, tuple[Tensor, ...]]] = []

    def symbolic(name: str, inputs: tuple[Tensor, ...], *, dtype: Any, shape: Any, version: int) -> Tensor:
        made.append((name, inputs))
        if name != NODE:
            return torch.zeros(shape, dtype=dtype)
        assert all(x.dim() == 4 for x in inputs[:3])
        out = orthogonal_attention(*inputs)
        assert out.shape == shape
        return out

    monkeypatch.setattr(onnx_capture.torch.onnx.ops, "symbolic", symbolic)
    return made


def choice_of(calls: Calls) -> FunctionChoice:
    (only,) = calls.choices
    return only


def chosen(evaluation: ExponentialMethod = AUTO, tokens: int = 9, width: int = 4, **settings: Any) -> FunctionChoice:
    calls, x = Calls(ExportSettings(**settings)), torch.zeros(1, 1, tokens, width)
    calls.replacement(x, x, x, 0.1, None, evaluation)
    return choice_of(calls)


@pytest.mark.parametrize(
    ("tokens", "form", "falls_back"),
    [(8, "dense", True), (9, "lowrank", True), (MOST_DENSE_TOKENS, "lowrank", True), (1025, "lowrank", False)],
)
def test_a_known_length_decides_the_form(tokens: int, form: str, falls_back: bool, nodes: Any) -> None:
    found = chosen(tokens=tokens)
    assert (found.form, found.fallback, found.counted, found.squarings) == (form, falls_back, True, "auto")


@pytest.mark.parametrize("evaluation", [FIXED, DENSE, ExponentialMethod("lowrank", "pade")], ids=str)
def test_a_form_that_is_asked_for_is_kept_and_has_nothing_behind_it(evaluation: ExponentialMethod, nodes: Any) -> None:
    found = chosen(evaluation, tokens=5)
    assert found.evaluation == evaluation
    assert (found.fallback, found.counted) == (False, not evaluation.is_fixed)


def test_settings_of_the_export_come_first(nodes: Any) -> None:
    found = chosen(AUTO, form="lowrank", approximant="pade", squarings=2, core="float32")
    assert found.evaluation == ExponentialMethod("lowrank", "pade", 2)
    assert (found.core, found.counted, found.fallback) == ("float32", False, False)


@pytest.mark.parametrize("wide", ["q", "v", "scale", None])
def test_a_definition_for_float32_alone_needs_all_of_it(wide: str | None, nodes: Any) -> None:
    calls = Calls(ExportSettings())
    given = {"q": torch.zeros(1, 2, 9, 4), "v": torch.zeros(1, 2, 9, 4), "scale": torch.zeros(2)}
    given |= {} if wide is None else {wide: given[wide].half()}
    calls.replacement(given["q"], given["q"], given["v"], given["scale"], None, AUTO)
    assert choice_of(calls).any_type == (wide is not None)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 2, 3)], ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scaled", ["number", "by head"])
def test_calls_of_any_rank_are_one_node_of_rank_four(
    lead: tuple[int, ...], masked: bool, scaled: str, nodes: Any
) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(*lead, 6, 4), torch.randn(*lead, 6, 4), torch.randn(*lead, 6, 5)
    scale = 0.3 if scaled == "number" else torch.linspace(-0.5, 0.5, lead[-1] if lead else 1).reshape(lead[-1:])
    mask = torch.rand(*(size if i != len(lead) - 1 else 1 for i, size in enumerate(lead)), 6) < 0.7 if masked else None
    found = _node(q, k, v, scale, mask)
    expected = orthogonal_attention(q, k, v, torch.as_tensor(scale), mask)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    ((name, inputs),) = nodes
    assert (name, len(inputs), inputs[3].dtype) == (NODE, 4 + masked, torch.float32)


def test_half_precision_does_not_round_a_number(nodes: Any) -> None:
    x = torch.ones(1, 1, 3, 4).half()
    _node(x, x, x, 1e-8, None)
    assert float(nodes[0][1][3]) == pytest.approx(1e-8)


def test_a_mask_is_made_where_other_calls_have_one(nodes: Any) -> None:
    calls, x = Calls(ExportSettings(), force_mask=True), torch.randn(2, 3, 9, 4)
    calls.replacement(x, x.roll(1, -1), x, 0.1, None, AUTO)
    calls.layer(torch.randn(2, 900, 8), torch.randn(24, 8), torch.randn(8, 8), torch.ones(2), None, AUTO)
    assert [(inputs[4].shape, bool(inputs[4].all())) for _, inputs in nodes] == [((2, 3, 9), True), ((2, 900), True)]
    assert all(choice.masked for choice in calls.choices)


def layer(tokens: int, evaluation: ExponentialMethod = AUTO, **settings: Any) -> tuple[Tensor | None, Calls]:
    calls = Calls(ExportSettings(**settings))
    weight, out = torch.arange(48.0).reshape(24, 2), torch.arange(24.0).reshape(3, 8)
    return calls.layer(torch.zeros(2, tokens, 2), weight, out, torch.ones(2), None, evaluation), calls


def test_a_layer_is_one_node_from_the_length_on_at_which_it_may_fold(nodes: Any) -> None:
    fewest = fewest_tokens(2, 4)
    assert layer(fewest - 1)[0] is None
    found, calls = layer(fewest)
    assert found is not None
    assert found.shape == (2, fewest, 3)
    assert choice_of(calls) == FunctionChoice(
        form="lowrank", counted=True, any_type=False, fallback=True, layered=True, sized=False, short=True
    )
    ((name, (_, weight, out, _)),) = nodes
    assert (name, weight.shape, out.shape) == (LAYER_NODE, (2, 24), (8, 3))
    assert (weight[1, 5], out[7, 1]) == (11, 15), "turned to stand on the right of x"


@pytest.mark.parametrize(
    ("evaluation", "settings"),
    [(DENSE, {}), (FIXED, {}), (AUTO, {"functions": "inline"}), (AUTO, {"squarings": 3, "form": "lowrank"})],
)
def test_a_layer_that_may_not_fold_keeps_its_projections(evaluation: Any, settings: Any, nodes: Any) -> None:
    found, calls = layer(1000, evaluation, **settings)
    assert found is None
    assert not calls.choices
    assert nodes == []


ONE = FunctionChoice(form="lowrank", masked=True, counted=True, any_type=False)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], ONE),
        ([replace(ONE, form="dense")], replace(ONE, form="auto")),
        ([replace(ONE, any_type=True)], replace(ONE, any_type=True)),
        ([replace(ONE, fallback=True)], replace(ONE, fallback=True)),
        ([replace(ONE, layered=True, sized=False)], replace(ONE, layered=True, sized=False)),
        ([replace(ONE, layered=True, sized=True)], replace(ONE, layered=True, sized=True)),
        (
            [replace(ONE, layered=True, sized=False), replace(ONE, layered=True, sized=True, form="auto")],
            replace(ONE, layered=True, sized=True, form="auto"),
        ),
    ],
)
def test_the_shared_definition_does_what_any_call_needs(others: list[FunctionChoice], expected: FunctionChoice) -> None:
    assert _common({ONE, *others}) == replace(expected, sized=expected.sized and expected.layered)


def test_fixed_calls_of_both_forms_share_the_low_rank_one() -> None:
    one = FunctionChoice(form="lowrank", squarings=3)
    assert _common({one, replace(one, form="dense")}) == replace(one, sized=False)
    assert _common(set()) is None


@pytest.mark.parametrize(("name", "other"), [("approximant", "pade"), ("squarings", 3)])
def test_what_cannot_be_shared_is_said(name: str, other: Any) -> None:
    with pytest.raises(ExportError, match=f"have different {name}: .*{other}.* make them equal with {name}="):
        _common({ONE, replace(ONE, **{name: other})})
