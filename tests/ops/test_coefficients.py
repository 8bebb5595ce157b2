"""The tables are what the theory says they are, recomputed here from its conditions."""

from __future__ import annotations

from fractions import Fraction
from math import factorial

import numpy as np
import pytest
import torch

from osa_runtime.ops.coefficients import (
    CHEBYSHEV_EVEN,
    CHEBYSHEV_EXP,
    CHEBYSHEV_EXP_REACH,
    CHEBYSHEV_ODD,
    CHEBYSHEV_REACH,
    LARGEST_TERMS,
    MOST_DENSE_TOKENS,
    NEAR_EVEN,
    NEAR_ODD,
    NEAR_REACH,
    PADE_EXP,
    TAYLOR_EXP,
    TAYLOR_PHI1,
)
from osa_runtime.ops.rounding import is_lost_in_terms
from osa_runtime.ops.scaling import reach
from osa_runtime.parity import feeds


def expand(table: tuple[float, ...]) -> np.ndarray:
    """The power-series coefficients of the three-product scheme, without the constant."""
    x1, x3, x4, x5, x6, x7, y1, y2 = table
    a, a2 = np.poly1d([1, 0]), np.poly1d([1, 0, 0])
    a4 = a2 * (x1 * a + a2)
    p = y1 * a + y2 * a2 + (x3 * a2 + a4) * (x4 + x5 * a + x6 * a2 + x7 * a4)
    return p.coeffs[::-1]


@pytest.mark.parametrize(("table", "shift"), [(TAYLOR_EXP, 0), (TAYLOR_PHI1, 1)], ids=["exp", "phi1"])
def test_three_products_reproduce_the_taylor_series(table: tuple[float, ...], shift: int) -> None:
    wanted = [1 / factorial(power + shift) for power in range(1, 9)]
    np.testing.assert_allclose(expand(table)[1:], wanted, rtol=1e-13)


def test_pade_coefficients_are_the_diagonal_approximant() -> None:
    m = 4
    p = [
        Fraction(factorial(2 * m - j) * factorial(m), factorial(2 * m) * factorial(j) * factorial(m - j))
        for j in range(m + 1)
    ]
    v1, v2, u0, u1 = PADE_EXP
    assert (p[0], p[2], p[4], p[1], p[3]) == (1, Fraction(3, 28), Fraction(1, 1680), Fraction(1, 2), Fraction(1, 84))
    assert (v1, v2, u0, u1) == (float(p[2]), float(p[4]), float(p[1]), float(p[3]))


@pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])
def test_reach_is_where_the_truncation_error_meets_half_an_ulp(double: bool) -> None:
    half_ulp = 2.0**-53 if double else 2.0**-24
    limits = {
        ("taylor", "dense"): (half_ulp * factorial(9)) ** (1 / 8),
        ("taylor", "lowrank"): (half_ulp * factorial(10)) ** (1 / 9),
        ("pade", "dense"): (half_ulp * factorial(8) * factorial(9) / factorial(4) ** 2) ** (1 / 8),
        ("pade", "lowrank"): (half_ulp * factorial(8) * factorial(9) / factorial(4) ** 2) ** (1 / 8),
    }
    if not double:
        del limits["taylor", "dense"]  # Chebyshev's; tested below
    for (approximant, form), limit in limits.items():
        assert 0.95 * limit <= reach(approximant, form, double) <= limit


def test_chebyshev_coefficients_are_the_projection_of_phi1() -> None:
    """φ₁(iy) = sin y/y + i(1 − cos y)/y, projected on T₀ … T₆ of u = 1 − 2y²/R² by quadrature at Chebyshev nodes."""
    nodes = np.cos((np.arange(64) + 0.5) * np.pi / 64)
    y = CHEBYSHEV_REACH * np.sqrt((1 - nodes) / 2)
    for table, values in (
        (CHEBYSHEV_EVEN, np.sin(y) / y),
        (CHEBYSHEV_ODD, CHEBYSHEV_REACH * (1 - np.cos(y)) / y**2),
    ):
        powers = [np.mean(values * np.cos(j * np.arccos(nodes))) * (2 if j else 1) for j in range(7)]
        np.testing.assert_allclose(table, np.polynomial.chebyshev.cheb2poly(powers), rtol=1e-9)


def test_chebyshev_meets_half_an_ulp_up_to_its_reach_and_not_far_beyond() -> None:
    def error(largest: float) -> float:
        z = 1j * np.linspace(1e-3, largest, 2001)
        x = z / CHEBYSHEV_REACH
        u = (2 * x * x + 1).real
        polynomial = sum(u**j * (e + o * x) for j, (e, o) in enumerate(zip(CHEBYSHEV_EVEN, CHEBYSHEV_ODD, strict=True)))
        return float(np.abs(polynomial - np.expm1(z) / z).max())

    assert error(CHEBYSHEV_REACH) <= 2.0**-24
    assert error(1.05 * CHEBYSHEV_REACH) > 2.0**-24


def near_polynomial(z: np.ndarray) -> np.ndarray:
    return sum((z * z) ** j * (e + o * z) for j, (e, o) in enumerate(zip(NEAR_EVEN, NEAR_ODD, strict=True)))


def test_the_short_polynomial_is_the_projection_of_phi1_on_a_shorter_segment() -> None:
    """Its coefficients along T₀ … T₁₁ of x = z/iR are those of φ₁, by quadrature at Chebyshev nodes."""
    angles = (np.arange(64) + 0.5) * np.pi / 64
    z = 1j * NEAR_REACH * np.cos(angles)
    difference = near_polynomial(z) - np.expm1(z) / z
    for degree in range(12):
        assert abs(np.mean(difference * np.cos(degree * angles))) < 1e-15


def test_the_short_polynomial_meets_half_an_ulp_up_to_its_reach_and_not_far_beyond() -> None:
    def error(largest: float) -> float:
        z = 1j * np.linspace(1e-3, largest, 2001)
        return float(np.abs(near_polynomial(z) - np.expm1(z) / z).max())

    assert error(NEAR_REACH) <= 2.0**-24
    assert error(1.05 * NEAR_REACH) > 2.0**-24


def test_powers_of_z_cancel_little_up_to_the_short_reach() -> None:
    powers = NEAR_REACH ** (2 * np.arange(6))
    assert np.dot(NEAR_EVEN, powers) < 3.7
    assert NEAR_REACH * np.dot(NEAR_ODD, powers) < 3.7


def test_no_power_of_u_is_large() -> None:
    """Horner's scheme in u amplifies no rounding."""
    assert sum(np.abs(CHEBYSHEV_EVEN)) == pytest.approx(1, abs=1e-6)
    assert sum(np.abs(CHEBYSHEV_ODD)) < 0.51 * CHEBYSHEV_REACH


def test_three_products_reproduce_the_chebyshev_polynomial_of_the_exponential() -> None:
    """Better than half an ulp up to its reach, and near the best that any polynomial of degree 8 can do."""
    z = 1j * np.linspace(1e-3, CHEBYSHEV_EXP_REACH, 2001)
    error = np.abs(np.polyval(expand(CHEBYSHEV_EXP)[::-1], z) - np.expm1(z)) / np.abs(z)
    assert error.max() <= 0.4 * 2.0**-24
    assert np.abs(np.polyval(expand(TAYLOR_EXP)[::-1], z) - np.expm1(z)).max() > 40 * error.max()


def test_limits_that_are_written_twice_are_the_same() -> None:
    """TorchScript reads no constants of a module, and parity must not import the operators."""
    one, norm = torch.ones(1, 1, 1), torch.ones(1)
    for factor, lost in ((0.99, False), (1.01, True)):
        q = torch.full((1, 1, 1), LARGEST_TERMS * factor, dtype=torch.float64)
        assert bool(is_lost_in_terms(q, one, one, norm, False)) is lost
    assert feeds.MOST_DENSE == MOST_DENSE_TOKENS
