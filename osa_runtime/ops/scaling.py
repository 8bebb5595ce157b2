"""Scaling and squaring: how often to halve the exponent, and the doubling that undoes it.

Written for three readers at once, eager PyTorch, TorchScript and torch.export, so constants are local
literals (TorchScript cannot see module globals) and data-dependent control flow goes through the
functions at the end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from osa_runtime.errors import ExponentRangeError


def reach(approximant: str, form: str, double: bool) -> float:
    """θ, the largest norm at which the approximant's truncation error stays below half an ulp.

    With p the approximant of eᶻ, θ solves |p(z) − eᶻ| / |z| = 2⁻²⁴ (2⁻⁵³ when the result is float64):

        taylor, dense     z⁸ / 9!                     degree 8 of eᶻ
        taylor, lowrank   z⁹ / 10!                    degree 8 of φ₁, so degree 9 of eᶻ
        pade              z⁸ · 4! 4! / (8! 9!)        [4/4]
    """
    if approximant == "pade":
        return 0.085 if double else 1.05
    if form == "dense":
        return 0.050 if double else 0.61
    return 0.090 if double else 0.84


def most_squarings(double: bool) -> int:
    """The cap: beyond it the rounding error, about eps·‖S‖, leaves no more than two correct digits."""
    return 46 if double else 20


def squarings_needed(norm: Tensor, theta: float, most: int) -> Tensor:
    """The smallest s with norm / 2ˢ ≤ θ for every entry whose norm is in range, as an integer scalar.

    A hair more than the logarithm, so that its rounding never leaves a norm just above θ·2ˢ.
    """
    usable = torch.where(norm <= theta * 2.0**most, norm, torch.zeros_like(norm))
    return torch.ceil(torch.log2(usable.amax() / theta) + 1e-5).clamp(0, most).to(torch.int64)


def scale_factor(norm: Tensor, theta: float, squarings: Tensor) -> Tensor:
    """2⁻ˢ for each entry, or NaN where the norm is NaN, infinite or beyond θ·2ˢ.

    A NaN here poisons exactly the entries that cannot be computed: a graph that cannot raise an error
    must not return a number that looks right.
    """
    doublings = torch.exp2(squarings.to(norm.dtype))
    return torch.where(norm <= theta * doublings, 1.0 / doublings, torch.full_like(norm, float("nan")))


def scaling(norm: Tensor, theta: float, squarings: int, double: bool) -> tuple[Tensor, Tensor]:
    """2⁻ˢ for each entry as (…, 1, 1), and s. ``squarings`` < 0 stands for as many as the norm needs."""
    if squarings < 0:
        count = squarings_needed(norm, theta, most_squarings(double))
    else:
        count = torch.full([], squarings, dtype=torch.int64, device=norm.device)
    if not torch.jit.is_scripting():
        check_range(norm, theta, squarings, double)
    return scale_factor(norm, theta, count)[..., None, None], count


def check_range(norm: Tensor, theta: float, squarings: int, double: bool) -> None:
    """In eager mode, raise when a finite norm is out of range. ``squarings`` < 0 stands for auto.

    A NaN or Inf came in with the input, and goes out as NaN.
    """
    if torch.compiler.is_compiling():
        return
    limit = theta * 2.0 ** (squarings if squarings >= 0 else most_squarings(double))
    largest = float(torch.where(torch.isfinite(norm), norm, torch.zeros_like(norm)).amax())
    if largest <= limit:
        return
    if squarings >= 0:
        raise ExponentRangeError(
            f"‖S‖ is up to {largest:.3g}, but {squarings} squarings are valid only for ‖S‖ ≤ {limit:.3g}. "
            "Use more squarings or squarings='auto'."
        )
    raise ExponentRangeError(
        f"‖S‖ is up to {largest:.3g}; beyond {limit:.3g} the exponential has no correct digits left in this precision. "
        "Reduce the scale or the norms of q and k" + ("." if double else ", or compute in float64.")
    )


def check_amplification(amplification: Tensor, limit: float) -> None:
    """In eager mode, raise where rounding to float64 is amplified so much that fewer than six digits are left."""
    if torch.compiler.is_compiling() or not bool((amplification > limit).any()):
        return
    raise ExponentRangeError(
        f"QKᵀ and KQᵀ cancel to {float(amplification.max()):.2g} times below their size, which leaves no digits of S. "
        "Make q and k less parallel (or subtract the mean of the tokens), or use form='dense'."
    )


@torch.jit.unused
def captures_control_flow() -> bool:
    """Whether a loop or a branch must become part of a graph.

    So in an exported program and in a compiled one without gradients. A compiled one with gradients runs the loop
    in Python, at the price of a graph break: torch cannot differentiate its graph loops yet.
    """
    return torch.compiler.is_exporting() or (torch.compiler.is_compiling() and not torch.is_grad_enabled())


def double_expm1(e: Tensor, squarings: Tensor) -> Tensor:
    """e^(2ˢA) − I from E = e^A − I: E ← 2E + E², as often as ``squarings`` says.

    Carrying e^A − I instead of e^A is what keeps an entry of small norm exact when another entry of its batch
    needs many squarings.
    """
    if torch.jit.is_scripting():
        for _ in range(int(squarings)):
            e = 2 * e + e @ e
        return e
    if captures_control_flow():
        return _double_expm1_in_graph(e, squarings)
    for _ in range(int(squarings)):
        e = torch.add(e @ e, e, alpha=2)
    return e


def double_phi1(e: Tensor, y: Tensor, squarings: Tensor) -> Tensor:
    """2ˢ·φ₁(2ˢA)·W from E = e^A − I and Y = φ₁(A)·W: Y ← 2Y + EY, E ← 2E + E²."""
    if torch.jit.is_scripting():
        for _ in range(int(squarings)):
            y, e = 2 * y + e @ y, 2 * e + e @ e
        return y
    if captures_control_flow():
        return _double_phi1_in_graph(e, y, squarings)
    for _ in range(int(squarings)):
        y, e = torch.add(e @ y, y, alpha=2), torch.add(e @ e, e, alpha=2)
    return y


@torch.jit.unused
def _double_expm1_in_graph(e: Tensor, squarings: Tensor) -> Tensor:
    from torch._higher_order_ops import while_loop

    def unfinished(left: Tensor, e: Tensor) -> Tensor:  # noqa: ARG001  # it takes the whole state
        return left > 0

    def double(left: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        return left - 1, 2 * e + e @ e

    return while_loop(unfinished, double, (squarings, e))[1]


@torch.jit.unused
def _double_phi1_in_graph(e: Tensor, y: Tensor, squarings: Tensor) -> Tensor:
    from torch._higher_order_ops import while_loop

    def unfinished(left: Tensor, e: Tensor, y: Tensor) -> Tensor:  # noqa: ARG001  # it takes the whole state
        return left > 0

    def double(left: Tensor, e: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return left - 1, 2 * e + e @ e, 2 * y + e @ y

    return while_loop(unfinished, double, (squarings, e, y))[2]
