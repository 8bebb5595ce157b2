"""Scaling and squaring: the number of halvings of the exponent, and the doubling that undoes them.

Written for three readers at once, eager PyTorch, TorchScript and torch.export, so constants are local
literals (TorchScript cannot see module globals) and data-dependent loops go through ``graph_control``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from osa_runtime.errors import ExponentRangeError
from osa_runtime.ops.graph_control import captures_control_flow, loop
from osa_runtime.ops.values import any_of, trip_count, whole


def reach(approximant: str, form: str, double: bool) -> float:
    """θ, the largest norm at which the approximant's truncation error stays below half an ulp.

    With p the approximant of eᶻ, θ solves |p(z) − eᶻ| / |z| = 2⁻²⁴ (2⁻⁵³ when the result is float64):

        taylor, dense     z⁸ / 9!                     degree 8 of eᶻ, for a float64 result
                          (Chebyshev on [−i, i])      degree 8 of eᶻ, for a float32 result
        taylor, lowrank   z⁹ / 10!                    degree 8 of φ₁, so degree 9 of eᶻ
        pade              z⁸ · 4! 4! / (8! 9!)        [4/4]
    """
    if approximant == "pade":
        return 0.085 if double else 1.05
    if form == "dense":
        return 0.050 if double else 1.0
    return 0.090 if double else 0.84


def most_squarings(double: bool) -> int:
    return 46 if double else 20


def largest_norm(theta: float, squarings: int, double: bool) -> float:
    """The largest bound of ‖S‖ that is computed. ``squarings`` < 0 stands for as many as the norm needs.

    The cap is the same for every form and approximant, eager or exported: beyond it the rounding error, about eps·‖S‖,
    leaves no more than two digits.
    """
    # A product: TorchScript stores larger whole numbers as integers.
    cap = 524288.0 * (4194304.0 if double else 1.0)  # 2¹⁹, and 2⁴¹ for a float64 result
    return cap if squarings < 0 else min(cap, theta * 2.0**squarings)


def squarings_needed(norm: Tensor, theta: float, double: bool) -> Tensor:
    """The smallest s with norm / 2ˢ ≤ θ for every entry whose norm is in range, as an integer scalar.

    A hair more than the logarithm, so that its rounding never leaves a norm just above θ·2ˢ.
    """
    usable = torch.where(norm <= largest_norm(theta, -1, double), norm, torch.zeros_like(norm))
    return torch.ceil(torch.log2(usable.amax() / theta) + 1e-5).clamp(0, most_squarings(double)).to(torch.int64)


def scale_factor(norm: Tensor, limit: float, squarings: Tensor) -> Tensor:
    """2⁻ˢ for each entry, or NaN where the norm is NaN, infinite or beyond the limit.

    A NaN here poisons exactly the entries that cannot be computed: a graph that cannot raise an error
    must not return a number that looks right.
    """
    factor = torch.exp2(-squarings.to(norm.dtype))
    return torch.where(norm <= limit, factor, torch.full_like(norm, float("nan")))


def scaling(norm: Tensor, theta: float, squarings: int, double: bool, least: int = 0) -> tuple[Tensor, Tensor]:
    """2⁻ˢ for each entry as (…, 1, 1), and s ≥ ``least``. ``squarings`` < 0 stands for as many as the norm needs."""
    every = norm
    if not torch.jit.is_scripting():
        check_range(norm, theta, squarings, double)
        every = whole(norm)
    if squarings < 0:
        count = squarings_needed(every, theta, double).clamp(min=least)
    else:
        count = torch.full([], squarings, dtype=torch.int64, device=norm.device)
    return scale_factor(norm, largest_norm(theta, squarings, double), count)[..., None, None], count


def check_range(norm: Tensor, theta: float, squarings: int, double: bool) -> None:
    """In eager mode, raise if a finite norm is out of range. ``squarings`` < 0 stands for auto.

    A NaN or Inf in the input is not an error: the result is NaN.
    """
    limit = largest_norm(theta, squarings, double)
    if torch.compiler.is_compiling() or not any_of(torch.isfinite(norm) & (norm > limit)):
        return
    values = whole(norm)
    largest = float(torch.where(torch.isfinite(values), values, torch.zeros_like(values)).amax())
    if squarings >= 0:
        raise ExponentRangeError(
            f"‖S‖ is up to {largest:.3g}, but {squarings} squarings are valid only for ‖S‖ ≤ {limit:.3g}. "
            "Use more squarings or squarings='auto'."
        )
    raise ExponentRangeError(
        f"‖S‖ is up to {largest:.3g}; beyond {limit:.3g} the exponential has no correct digits left in this precision. "
        "Reduce the scale or the norms of q and k" + ("." if double else ", or compute in float64.")
    )


def doubled_expm1(e: Tensor, squarings: Tensor, fixed: int = -1) -> Tensor:
    """e^(2ˢA) − I from E = e^A − I, with one batch axis: E ← 2E + E², ``squarings`` times.

    ``fixed`` is their number where it is known.

    Carrying e^A − I instead of e^A keeps an entry of small norm exact when another entry of its batch
    needs many squarings.
    """
    if not torch.jit.is_scripting():  # noqa: SIM102  # TorchScript skips the body only when this stands alone
        if fixed < 0 and captures_control_flow():
            return _doubled_expm1_in_graph(e, squarings)
    for _ in range(fixed if fixed >= 0 else trip_count(squarings)):
        e = torch.baddbmm(e, e, e, beta=2)
    return e


def doubled_phi1(e: Tensor, y: Tensor, squarings: Tensor, fixed: int = -1) -> Tensor:
    """2ˢ·φ₁(2ˢA)·W from E = e^A − I and Y = φ₁(A)·W: Y ← 2Y + EY, E ← 2E + E²; the last E is not needed. s ≥ 1."""
    if not torch.jit.is_scripting():  # noqa: SIM102  # TorchScript skips the body only when this stands alone
        if fixed < 0 and captures_control_flow():
            e, y = _doubled_phi1_in_graph(e, y, squarings - 1)
            return torch.add(e @ y, y, alpha=2)
    for _ in range(fixed - 1 if fixed >= 0 else trip_count(squarings - 1)):
        y, e = torch.add(e @ y, y, alpha=2), torch.add(e @ e, e, alpha=2)
    return torch.add(e @ y, y, alpha=2)


@torch.jit.unused
def _doubled_expm1_in_graph(e: Tensor, squarings: Tensor) -> Tensor:
    def unfinished(left: Tensor, e: Tensor) -> Tensor:  # noqa: ARG001  # it takes the whole state
        return left > 0

    def double(left: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        return left - 1, 2 * e + e @ e

    return loop(unfinished, double, (squarings, e))[1]


@torch.jit.unused
def _doubled_phi1_in_graph(e: Tensor, y: Tensor, squarings: Tensor) -> tuple[Tensor, Tensor]:
    def unfinished(left: Tensor, e: Tensor, y: Tensor) -> Tensor:  # noqa: ARG001  # it takes the whole state
        return left > 0

    def double(left: Tensor, e: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return left - 1, 2 * e + e @ e, 2 * y + e @ y

    _, e, y = loop(unfinished, double, (squarings, e, y))
    return e, y
