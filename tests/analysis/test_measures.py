"""Measures of tokens and Jacobians against closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from osa_runtime.analysis.measures import (
    condition_number,
    effective_rank,
    exponent_norms,
    jacobian,
    layers_of,
    matrices,
    mean_cosine,
    recorded_inputs,
    residual_from_rank_one,
)
from osa_runtime.models import EncoderConfig, SkiplessEncoder
from osa_runtime.ops import reference


def test_tokens_that_are_all_alike() -> None:
    x = torch.randn(1, 8).expand(5, 8)
    assert residual_from_rank_one(x) < 1e-6
    assert abs(mean_cosine(x) - 1) < 1e-6
    assert abs(effective_rank(x) - 1) < 1e-3


def test_tokens_that_are_orthogonal() -> None:
    x = torch.eye(6)
    assert abs(mean_cosine(x)) < 1e-12
    assert abs(effective_rank(x) - 6) < 1e-9
    assert abs(residual_from_rank_one(x) - math.sqrt(5 / 6)) < 1e-9
    assert torch.isnan(mean_cosine(x[:1]))


@pytest.mark.parametrize("size", [1, 3, 300], ids=["one", "odd", "more rows than at a time"])
def test_the_jacobian_of_a_linear_map_is_its_matrix(size: int) -> None:
    matrix = torch.randn(size, size, dtype=torch.float64)
    found = jacobian(lambda x: (x.flatten(1) @ matrix.mT).reshape_as(x), torch.randn(1, size, 1, dtype=torch.float64))
    torch.testing.assert_close(found, matrix)


def test_the_condition_number_of_a_singular_map_is_infinite() -> None:
    assert condition_number(lambda x: x * torch.tensor([1.0, 0.0]), torch.randn(1, 1, 2)) == math.inf
    assert condition_number(lambda x: 3 * x, torch.randn(1, 4, 2)) == pytest.approx(1.0)


@pytest.mark.parametrize("attention", ["osa", "softmax", "polynomial"])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_the_layer_is_its_matrices_times_its_values(attention: str, masked: bool) -> None:
    torch.manual_seed(0)
    config = EncoderConfig(
        classes=2, features=6, max_length=9, dim=12, heads=3, depth=2, attention=attention, norm=True
    )
    model = SkiplessEncoder(config).double().eval()
    mask = torch.arange(9).expand(2, 9) < torch.tensor([[9], [5]]) if masked else None
    with recorded_inputs(model) as seen:
        model(torch.randn(2, 9, 6, dtype=torch.float64), mask)
    for name, layer in layers_of(model).items():
        x, given = seen[name]
        a, (_, _, v) = matrices(layer, x, given), layer.project(x)
        expected = layer.out((a @ v).transpose(1, 2).flatten(2))
        out = layer(x, given)
        real = slice(None) if mask is None else mask
        torch.testing.assert_close(out[real], expected[real])


def test_the_norm_of_the_exponent_is_the_largest_angle() -> None:
    torch.manual_seed(0)
    config = EncoderConfig(classes=2, features=6, max_length=9, dim=12, heads=3, depth=1, alpha=0.3)
    model = SkiplessEncoder(config).double()
    (layer,) = layers_of(model).values()
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    q, k, _ = layer.project(x)
    angles = torch.linalg.eigvals(reference.attention_matrix(q, k, layer.alpha / 2)).angle().abs().amax(-1)  # type: ignore[operator]
    torch.testing.assert_close(exponent_norms(layer, x), angles)  # type: ignore[arg-type]
