"""The settings that the function definitions are specialised to."""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnxscript

from osa_runtime.exponential import ExponentialMethod

DOMAIN, VERSION = "ai.osa", 1

osa = onnxscript.values.Opset(DOMAIN, VERSION)


@dataclass(frozen=True)
class FunctionChoice(ExponentialMethod):
    """The choice of function definitions. ``form`` auto decides in the graph by N and d.

    ``counted`` adds a second output to OrthogonalAttention, the number of squarings that the data needed.
    With ``fallback`` the dense form answers what the low-rank form has no digits of, as auto does. If ``short``, it
    answers at once what float32 has no digits of: for so few tokens that is as fast as the low-rank form in float64.
    ``layered`` adds OrthogonalSelfAttention, the whole layer; if ``sized``, the graph decides whether to fold it; if
    ``joined``, there is one with the linear layer behind it, too.
    Without ``any_type`` the definition takes float32 alone. That saves casts, which not all runtimes remove.

    A fixed number of squarings leaves no control flow in the graph: no Loop, and a low-rank core that is always in
    float64 instead of a choice. Values beyond what it can represent become NaN. With ``core`` float32 such a graph has
    no float64 either: its answers have two bits less, and become NaN where QKᵀ − KQᵀ cancels more than float32 holds.
    """

    masked: bool = False
    any_type: bool = True
    counted: bool = False
    core: str = "float64"
    fallback: bool = False
    short: bool = False
    layered: bool = False
    sized: bool = True
    joined: bool = False

    @property
    def evaluation(self) -> ExponentialMethod:
        return ExponentialMethod(self.form, self.approximant, self.squarings)

    @property
    def steps(self) -> bool:
        """True if the low-rank form takes Chebyshev steps in float32, where they suffice, instead of squarings."""
        return self.form != "dense" and not self.is_fixed and self.approximant != "pade"

    @property
    def has_dense(self) -> bool:
        return self.form != "lowrank" or self.fallback

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_fixed and self.form == "auto":
            raise ValueError("With fixed squarings the graph has no branch: choose form dense or lowrank.")
        if self.core == "float32" and not self.is_fixed:
            raise ValueError("core='float32' is for a fixed number of squarings.")


def number(value: float) -> onnx.TensorProto:
    """A constant in float64, which is exact when cast to the type of its operand in either precision."""
    return onnx.helper.make_tensor("number", onnx.TensorProto.DOUBLE, [], [value])
