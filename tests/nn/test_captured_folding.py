"""The folded layer in TorchScript and in pt2: the choice, the answers and the gradients of eager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from exponents import normal
from osa_runtime.errors import InputError
from osa_runtime.exponential import ExponentialMethod
from osa_runtime.nn import OrthogonalSelfAttention
from osa_runtime.ops.interception import intercept

TOKENS = 100
Captured = Callable[..., Tensor]


def made() -> OrthogonalSelfAttention:
    torch.manual_seed(0)
    return OrthogonalSelfAttention(8, 2, alpha=0.02).eval()


def by_parts(layer: OrthogonalSelfAttention, *inputs: Tensor | None) -> Tensor:
    with intercept(None):
        return layer(*inputs)


def scripted(layer: OrthogonalSelfAttention, folder: Path, masked: bool) -> Captured:
    torch.jit.script(layer).save(str(folder / "a.pt"))
    return torch.jit.load(str(folder / "a.pt"))  # type: ignore[no-any-return]


def exported(layer: OrthogonalSelfAttention, folder: Path, masked: bool) -> Captured:
    torch.compiler.reset()
    inputs = (normal(2, TOKENS, 8), torch.ones(2, TOKENS, dtype=torch.bool))[: 1 + masked]
    batch = torch.export.Dim("batch")
    with torch.no_grad():
        program = torch.export.export(layer, inputs, dynamic_shapes=({0: batch},) * len(inputs))
    torch.export.save(program, folder / "a.pt2")
    return torch.export.load(folder / "a.pt2").module()


CAPTURES = [
    pytest.param((scripted, False), id="torchscript"),
    pytest.param((scripted, True), id="torchscript-masked"),
    pytest.param((exported, False), id="pt2", marks=pytest.mark.slow),
    pytest.param((exported, True), id="pt2-masked", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=CAPTURES)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Captured, bool]:
    capture, masked = request.param
    return capture(made(), tmp_path_factory.mktemp("program"), masked), masked


def tokens(kind: str) -> Tensor:
    x = normal(3, TOKENS, 8, seed=7)
    if kind == "mean":
        x = 0.1 * x + 2 * normal(8, seed=1)
    if kind == "steps":
        x = 2 * x
    if kind == "outlier":
        x[1, 4] *= 1e3
    if kind == "broken":
        x[1, 4, 2] = torch.nan
    return x


@pytest.mark.parametrize("kind", ["usual", "mean", "steps", "outlier", "broken"])
def test_the_choice_and_the_answers_of_eager(program: tuple[Captured, bool], kind: str) -> None:
    (captured, masked), layer, x = program, made(), tokens(kind)
    mask = torch.arange(TOKENS) < torch.tensor([[TOKENS], [60], [7]]) if masked else None
    inputs = (x,) if mask is None else (x, mask)
    with torch.no_grad():
        out, expected, parts = captured(*inputs), layer(*inputs), by_parts(layer, *inputs)
    folds = kind not in ("outlier", "broken")
    assert torch.equal(expected.nan_to_num(), parts.nan_to_num()) is not folds
    torch.testing.assert_close(
        out, expected, rtol=0, atol=1e-7 * float(expected.nan_to_num().abs().max()), equal_nan=True
    )
    if kind == "broken":
        real = torch.ones(TOKENS, dtype=torch.bool) if mask is None else mask[1]
        assert bool(out[1][real].isnan().all())
        assert bool(out[[0, 2]].isfinite().all())


def test_padding_never_reaches_a_real_token(program: tuple[Captured, bool]) -> None:
    captured, masked = program
    if masked:
        x, mask = tokens("usual"), torch.arange(TOKENS) < torch.tensor([[TOKENS], [60], [7]])
        with torch.no_grad():
            out, wild = captured(x, mask), captured(x.masked_fill(~mask[..., None], torch.nan), mask)
        assert torch.equal(out[mask], wild[mask])


def test_short_sequences_go_by_parts() -> None:
    layer, x = made(), normal(2, 10, 8)
    assert torch.equal(torch.jit.script(layer)(x), by_parts(layer, x))


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_of_torchscript(masked: bool) -> None:
    layer = made()
    captured, mask = torch.jit.script(layer), (torch.rand(2, TOKENS) < 0.7 if masked else None)
    x = (normal(2, TOKENS, 8) + 3 * normal(8, seed=1)).requires_grad_()
    inputs = (x, layer.project.weight, layer.out.weight, layer.alpha)
    for _ in range(3):  # TorchScript optimises what it has seen
        found = torch.autograd.grad(captured(x, mask).sin().sum(), inputs)
    for ours, expected in zip(found, torch.autograd.grad(by_parts(layer, x, mask).sin().sum(), inputs), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=2e-5 * float(expected.abs().max()))


@pytest.mark.parametrize(
    "how", [ExponentialMethod("dense"), ExponentialMethod("lowrank", "pade"), ExponentialMethod(squarings=4)], ids=str
)
def test_other_methods_have_no_folded_code(how: ExponentialMethod) -> None:
    layer, x = made(), normal(2, TOKENS, 8)
    layer.evaluate(how)
    captured = torch.jit.script(layer)
    assert "_folded" not in captured.code
    torch.testing.assert_close(captured(x), layer(x), rtol=0, atol=1e-5)


def test_halves_are_folded_in_float32() -> None:
    layer, x = made().half(), normal(2, TOKENS, 8).half()
    assert torch.equal(torch.jit.script(layer)(x), layer(x))
    assert not torch.equal(layer(x), by_parts(layer, x))


def test_autocast_is_for_queries_keys_and_values() -> None:
    """Products of the folded core would lose its digits; the result has the type that eager's has."""
    layer, x = made(), normal(2, TOKENS, 8)
    captured = torch.jit.script(layer)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        out, expected = captured(x), layer(x)
    assert out.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(out, expected, rtol=0, atol=2e-2 * float(expected.abs().max()))


def test_an_empty_batch_is_refused_as_without_folding() -> None:
    with pytest.raises(InputError, match="No dimension may be empty"):
        made()(normal(0, TOKENS, 8))
