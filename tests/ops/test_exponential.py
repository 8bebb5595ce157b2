"""The exponential of a skew matrix: closed forms, invariants, and another library's answer."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch

from exponents import normal, scale_for
from osa_runtime.errors import ExponentRangeError, InputError
from osa_runtime.ops import attention_matrix, reference, skew_exponential

APPROXIMANTS = ["taylor", "pade"]


def skew(n: int, norm: float, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    m = normal(n, n, seed=seed, dtype=torch.float64)
    s = m - m.mT
    size = torch.linalg.matrix_norm(s, 2)
    return (s * (norm / size if size > 0 else 1.0)).to(dtype)


@pytest.mark.parametrize("approximant", APPROXIMANTS)
@pytest.mark.parametrize("angle", [0.0, 1e-8, 0.1, 1.0, np.pi, 10.0, 100.0])
def test_plane_rotation(angle: float, approximant: str) -> None:
    s = torch.tensor([[0.0, -angle], [angle, 0.0]], dtype=torch.float64)
    expected = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    actual = skew_exponential(s, approximant=approximant)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-15 * (1 + 2 * angle))


@pytest.mark.parametrize("approximant", APPROXIMANTS)
def test_rodrigues_formula(approximant: str) -> None:
    x, y, z = 0.3, -0.5, 0.8
    s = torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=torch.float64)
    angle = np.sqrt(x * x + y * y + z * z)
    expected = torch.eye(3) + np.sin(angle) / angle * s + (1 - np.cos(angle)) / angle**2 * (s @ s)
    torch.testing.assert_close(skew_exponential(s, approximant=approximant), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("norm", [0.1, 3.0, 60.0])
def test_reference_agrees_with_scipy(norm: float) -> None:
    s = skew(20, norm)
    np.testing.assert_allclose(reference.skew_exponential(s), scipy.linalg.expm(s.numpy()), atol=1e-14 * (1 + norm))


@pytest.mark.parametrize("approximant", APPROXIMANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("norm", [1e-3, 0.5, 2.0, 5.0, 50.0, 500.0, 5e4])
@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_orthogonal_with_determinant_one(n: int, norm: float, dtype: torch.dtype, approximant: str) -> None:
    a = skew_exponential(skew(n, norm, dtype=dtype), approximant=approximant).double()
    defect = torch.linalg.matrix_norm(a.mT @ a - torch.eye(n, dtype=torch.float64), 2)
    assert float(defect) <= 50 * torch.finfo(dtype).eps * (1 + norm)
    if norm <= 50:
        assert abs(float(torch.linalg.det(a)) - 1) < 1e-2


@pytest.mark.parametrize("norm", [0.5, 5.0, 50.0, 500.0])
def test_attention_matrix_is_orthogonal_and_the_reference(norm: float) -> None:
    q, k = normal(2, 3, 40, 8, seed=1), normal(2, 3, 40, 8, seed=2)
    scale = scale_for(q, k, norm).float()
    a = attention_matrix(q, k, scale)
    defect = torch.linalg.matrix_norm(a.double().mT @ a.double() - torch.eye(40, dtype=torch.float64), 2)
    assert float(defect.max()) <= 50 * torch.finfo(torch.float32).eps * (1 + norm)
    expected = reference.attention_matrix(q, k, scale)
    torch.testing.assert_close(a.double(), expected, rtol=0, atol=2e-6 * max(1, norm / 5))


def test_a_batch_equals_its_slices() -> None:
    """One slice's scaling must not leak into another's."""
    batch = torch.stack([skew(12, norm, seed=i) for i, norm in enumerate([1e-6, 300.0, 0.1, 4.0])])
    together = skew_exponential(batch)
    for i, s in enumerate(batch):
        torch.testing.assert_close(together[i], skew_exponential(s), rtol=0, atol=1e-13)


def test_small_exponents_keep_their_relative_accuracy_beside_large_ones() -> None:
    batch = torch.stack([skew(6, 1e-7, dtype=torch.float64), skew(6, 1e3, seed=1)])
    change = skew_exponential(batch)[0] - torch.eye(6)
    torch.testing.assert_close(change, batch[0], rtol=0, atol=2e-14)


def test_fixed_squarings_are_valid_up_to_their_range_and_refused_beyond() -> None:
    s = skew(10, 4.0, dtype=torch.float32)
    torch.testing.assert_close(skew_exponential(s, squarings=6), skew_exponential(s), rtol=0, atol=3e-6)
    with pytest.raises(ExponentRangeError, match="2 squarings are valid only for"):
        skew_exponential(s, squarings=2)


@pytest.mark.parametrize(
    ("s", "message"),
    [
        (torch.ones(3, 3), "expects S = −Sᵀ"),
        (torch.zeros(3, 4), "square matrices"),
        (torch.zeros(3), "square matrices"),
        (torch.zeros(2, 2, dtype=torch.int64), "floating-point"),
        ([[0.0]], "floating-point"),
    ],
    ids=["not skew", "not square", "vector", "integers", "list"],
)
def test_what_is_not_a_skew_matrix_is_refused(s: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        skew_exponential(s)  # type: ignore[arg-type]
