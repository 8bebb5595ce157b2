"""The attention layers: what they compute, their masks, their conditioning, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from exponents import normal
from osa_runtime.errors import ConfigError, InputError
from osa_runtime.nn import OrthogonalSelfAttention, PolynomialSelfAttention, SoftmaxSelfAttention
from osa_runtime.ops import reference

LAYERS = {
    "osa": OrthogonalSelfAttention,
    "softmax": SoftmaxSelfAttention,
    "polynomial": PolynomialSelfAttention,
}


def per_head(weight: Tensor, dim: int, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """W_Q, W_K, W_V as (heads, d, dim), unpacked independently of the layer."""
    width = dim // heads
    rows = [weight[h * 3 * width : (h + 1) * 3 * width] for h in range(heads)]
    return tuple(torch.stack([r[i * width : (i + 1) * width] for r in rows]) for i in range(3))  # type: ignore[return-value]


def by_hand(kind: str, layer: nn.Module, x: Tensor, power: int = 3) -> Tensor:
    """The layer written out head by head, in float64."""
    dim, heads = layer.project.dim, layer.project.heads
    w_q, w_k, w_v = per_head(layer.project.effective_weight().double(), dim, heads)
    outputs = []
    for h in range(heads):
        q, k, v = (x.double() @ w[h].T for w in (w_q, w_k, w_v))
        scores = q @ k.transpose(-1, -2) / (dim // heads) ** 0.5
        if kind == "osa":
            alpha = float(layer.alpha[h].detach())
            outputs.append(reference.orthogonal_attention(q, k, v, alpha / (dim // heads) ** 0.5))
        elif kind == "softmax":
            outputs.append(scores.softmax(-1) @ v)
        else:
            outputs.append(scores**power / x.size(1) ** 0.5 @ v)
    return torch.cat(outputs, -1) @ layer.out.weight.double().T


@pytest.mark.parametrize("conditioning", ["none", "spectral"])
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(("dim", "heads", "tokens"), [(8, 1, 1), (12, 3, 5), (16, 2, 40)])
def test_layers_compute_their_definition(kind: str, conditioning: str, dim: int, heads: int, tokens: int) -> None:
    torch.manual_seed(0)
    layer = LAYERS[kind](dim, heads, conditioning=conditioning)
    x = normal(2, tokens, dim)
    if kind == "osa":
        nn.init.uniform_(layer.alpha, 0.1, 0.4)
    torch.testing.assert_close(layer(x).double(), by_hand(kind, layer, x), rtol=2e-5, atol=2e-5)


def test_polynomial_of_power_one() -> None:
    layer, x = PolynomialSelfAttention(8, 2, power=1), normal(2, 6, 8)
    torch.testing.assert_close(layer(x).double(), by_hand("polynomial", layer, x, power=1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("power", [1, 3])
@pytest.mark.parametrize("kind", LAYERS)
def test_padding_changes_nothing_for_real_tokens(kind: str, power: int) -> None:
    torch.manual_seed(0)
    layer = LAYERS[kind](12, 3, power=power) if kind == "polynomial" else LAYERS[kind](12, 3)
    x, lengths = normal(3, 9, 12), [1, 4, 9]
    mask = torch.arange(9) < torch.tensor(lengths)[:, None]
    out = layer(x, mask)
    refilled = layer(torch.where(mask[..., None], x, torch.full_like(x, 1e3)), mask)
    for i, n in enumerate(lengths):
        torch.testing.assert_close(out[i, :n], layer(x[i : i + 1, :n])[0], rtol=1e-5, atol=1e-5)
        assert torch.equal(out[i, :n], refilled[i, :n])


def test_spectral_conditioning_is_fixed_and_lowers_the_condition_number() -> None:
    torch.manual_seed(0)
    layer = SoftmaxSelfAttention(16, 2, conditioning="spectral")
    assert "project.correction" not in layer.state_dict()
    assert [name for name, _ in layer.named_parameters()] == ["project.weight", "out.weight"]
    for w in per_head(layer.project.effective_weight(), 16, 2):
        assert float(torch.linalg.cond(w.detach().reshape(16, 16))) <= 1.5
    identity = per_head(layer.project.correction, 16, 2)
    assert all(torch.equal(part.reshape(16, 16), torch.eye(16)) for part in identity)


@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_reach_every_parameter(kind: str) -> None:
    layer = LAYERS[kind](12, 3)
    layer(normal(2, 7, 12)).square().mul(normal(2, 7, 12, seed=1)).sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().sum()) > 0, name


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: OrthogonalSelfAttention(10, 3), "dim must be a positive multiple of heads, got dim=10 and heads=3"),
        (lambda: SoftmaxSelfAttention(0, 1), "dim must be a positive multiple"),
        (lambda: SoftmaxSelfAttention(4, 2, conditioning="warm"), "conditioning must be one of none, spectral"),
        (lambda: PolynomialSelfAttention(4, 2, power=2), "power must be 1 or 3, got 2"),
        (lambda: OrthogonalSelfAttention(4, 2, form="huge"), "form must be one of"),
    ],
    ids=["dim", "zero", "conditioning", "power", "form"],
)
def test_what_cannot_be_built(build: object, message: str) -> None:
    with pytest.raises((ConfigError, InputError), match=message):
        build()  # type: ignore[operator]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        (torch.zeros(2, 5, 7), None, r"\(batch, tokens, 8\), got torch.float32 of shape \(2, 5, 7\)"),
        (torch.zeros(5, 8), None, r"\(batch, tokens, 8\)"),
        (torch.zeros(2, 5, 8).long(), None, "floating-point"),
        (torch.zeros(2, 5, 8), torch.ones(2, 5), "mask must be a boolean tensor"),
        (torch.zeros(2, 5, 8), torch.ones(2, 4).bool(), r"= \(2, 5\), got \(2, 4\)"),
    ],
    ids=["width", "rank", "dtype", "mask dtype", "mask shape"],
)
def test_inputs_that_do_not_fit(kind: str, x: Tensor, mask: Tensor | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LAYERS[kind](8, 2)(x, mask)
