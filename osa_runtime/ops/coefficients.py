"""The numbers behind the approximants, in one place for the operators and for the exported functions.

``README.md`` derives them; ``tests/ops/test_coefficients.py`` recomputes them from the conditions they meet.
"""

from __future__ import annotations

# The lengths are part of the types, because TorchScript takes tables only as default arguments and as tuples.
Six = tuple[float, float, float, float, float, float]
Seven = tuple[float, float, float, float, float, float, float]
Eight = tuple[float, float, float, float, float, float, float, float]

# Degree-8 Taylor polynomials in three products, as (x₁, x₃, x₄, x₅, x₆, x₇, y₁, y₂) of
#   p(A) = y₀I + y₁A + y₂A₂ + (x₃A₂ + A₄)(x₄I + x₅A + x₆A₂ + x₇A₄),   A₄ = A₂(x₁A + A₂)
TAYLOR_EXP: Eight = (
    4.0,
    24.60826939130014145,
    0.014812404434097067862,
    0.0043650793650793650794,
    0.00038173935041418299975,
    0.000024801587301587301587,
    1.0,
    0.13549236135285063166,
)
TAYLOR_PHI1: Eight = (
    4.5,
    35.425244170641218626,
    0.003377505067016276945,
    0.00074714781746031746032,
    0.00004498665076432644779,
    0.0000027557319223985890653,
    0.5,
    0.047017724980037123369,
)

# The same scheme for e^z − 1 = z·φ₁(z) with a Chebyshev projection of φ₁ of degree 7 on [−i, i], for skew matrices: the
# error relative to z is 2.2e-8 up to 1, where Taylor's is 2.8e-6.
CHEBYSHEV_EXP_REACH = 1.0
CHEBYSHEV_EXP: Eight = (
    3.9777574753251296016,
    25.14898102162374163,
    0.014502730150485882825,
    0.0043332828260070008042,
    0.0003947325163034299427,
    0.000024256273260543063001,
    0.99999997890692729861,
    0.13527111256717557225,
)

# [4/4] Padé approximant of e^z: p(z) = v(z²) + z·u(z²), q(z) = p(−z), as (v₁, v₂, u₀, u₁) with v₀ = 1.
PADE_EXP: tuple[float, float, float, float] = (3 / 28, 1 / 1680, 1 / 2, 1 / 84)

# φ₁ on the segment [−iR, iR] in Chebyshev's sense, degree 13: with x = z/R and u = 2x² + 1, which runs over [−1, 1],
#   φ₁(z) ≈ Σⱼ uʲ(eⱼ + oⱼx),   R = CHEBYSHEV_REACH
# The error relative to z stays below 2⁻²⁴ up to R, and powers of u, unlike powers of z, cancel nowhere: Σ|eⱼ| = 1.
CHEBYSHEV_REACH = 4.3
CHEBYSHEV_EVEN: Seven = (
    0.033172086579916661,
    0.51403663912089509,
    0.34719273979236637,
    0.091313267184722906,
    0.013030768225849227,
    0.0011809641059863661,
    0.000073481606115087787,
)
CHEBYSHEV_ODD: Seven = (
    0.92786067727447267,
    0.85654079113580179,
    0.3039517041052894,
    0.05512944052222728,
    0.0060477593452391589,
    0.00044612913852311028,
    0.000023483710677702117,
)
# For norms up to a smaller R degree 11 is enough, the Chebyshev projection in x = z/R: R = NEAR_REACH,
#   φ₁(z) ≈ Σⱼ z²ʲ(eⱼ + oⱼz)
# So near to 0 powers of z² cancel little, and products with M², which are small, round less than products with u.
NEAR_REACH = 3.12
NEAR_EVEN: Six = (
    0.99999994263896878,
    0.16666624057453807,
    0.0083328195832723691,
    0.00019818547689428745,
    2.7100335666717986e-6,
    2.0752654634771701e-8,
)
NEAR_ODD: Six = (
    0.49999997309106868,
    0.041666588956468107,
    0.0013888246664768249,
    2.4778776840119284e-5,
    2.7161276921617919e-7,
    1.7530229130891625e-9,
)
# Steps of length R that are taken before squaring is cheaper, and how far they reach.
CHEBYSHEV_STEPS = 4
FARTHEST = CHEBYSHEV_REACH * CHEBYSHEV_STEPS
# Relative to tr M⁴, more than its rounding error wherever the low-rank form is not in doubt (lowrank.core_norm).
FOURTHS_MARGIN = 2.0**-16
# 4·ln 2: the balance of Q and K is the power of two next to (‖K‖²/‖Q‖²)^¼ (lowrank.gram_core).
FOUR_LN2 = 2.772588722239781
# Below every square of a length that matters, and in float32's range: 0/0 becomes 0 (rounding.spectral_estimate).
TINY_SQUARE = 1e-37

# The largest amplification of rounding (rounding.gram_amplification) with which the low-rank form stays in float32, and
# with which it keeps, in float64, the digits of a float32 result; rounding.py has the latter once more, as a literal.
FLOAT32_AMPLIFICATION = 200.0
FLOAT64_AMPLIFICATION = 2.0**32
# The largest |c|·‖Q‖·‖K‖ with which S, formed in float64, has the digits of a float32 result.
LARGEST_TERMS = 2.0**34
# The same two limits for graphs that have no float64 at all. Over 3,000 structured inputs the errors were up to
# 2⁻²⁴·|c|·‖Q‖·‖K‖ and 0.13·2⁻²⁴·a; such a graph may have four times the error of the others, 8e-6·max(1, ‖S‖/4).
LARGEST_AMPLIFICATION_ALONE = 800.0
LARGEST_TERMS_ALONE = 128.0
# Up to here the dense form takes over where the low-rank form has lost its digits: tokens, and entries of all S.
MOST_DENSE_TOKENS = 1024
MOST_DENSE_ENTRIES = 2**26
SHORT = 3.2  # times d: up to here the dense form takes no longer than the low-rank one in float64, measured

# The layer folds where that saves this much of what it costs in D³ and D²d: small products run slower than long ones.
FOLDED_MARGIN = 1.6
# Tokens that say how far tokens are apart (folded.rough_mean).
MEAN_SAMPLE = 64
# The largest log₂ τ of the scaling along the mean: beyond, tokens are constant to the last digit.
LARGEST_MEAN_SCALING = 16.0
# The folded layer takes ‖C‖ as at least this: below, the squares in its estimate leave the range of float32.
LEAST_SQUARE = 1e-8
# Where ‖M‖² is below this, rounding C still costs half an eps for each unit of β (folded.is_in_folded_doubt).
SMALL_CORE = 4.0

# Newton–Schulz steps that take the inverse of the Padé denominator from ‖I − q·p‖ ≤ θ²/28 to below eps.
PADE_INVERSE_STEPS = 3


def in_few_passes(table: Eight) -> Eight:
    """A table of degree 8 rewritten for runtimes that pass over a matrix for every sum and every factor.

    With a = g₁A, a₂ = g₂A², g₂ = 1/x₃ and g₁ = x₁/x₃, the scaling of A and A² takes in two of the factors:
        t = a + a₂,   left = a₂t + a₂ = (A₄ + x₃A²)/x₃²,   p = left·right + low
    with right and low combinations of left, t and a. Returns g₁, g₂ and the two sets of coefficients.
    """
    x1, x3, x4, x5, x6, x7, y1, y2 = table
    g1, g2, square = x1 / x3, 1 / x3, 1 / x3**2
    rest = x6 - x7 * x3
    right = (x7 / square**2, rest / (g2 * square), (x5 - rest * x1) / (g1 * square))
    return (g1, g2, *right, x4 / square, y2 / g2, (y1 - y2 * x1) / g1)
