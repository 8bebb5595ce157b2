"""The one table of tolerances, as multiples of the machine epsilon of the exported type.

Two evaluations of one model in the same precision differ because they sum in another order: by a few eps in each
layer, which add up like a random walk. So the tolerance grows with the root of the number of matrices in the model.
An exponential loses digits in proportion to ‖S‖, in any precision and by any method, once ‖S‖ is large.
Loosening an entry needs a reason next to it.

The spread is that of a model's answers when everything in it is changed by as much as rounding changes it. A runtime is
not at fault for a distance within that. The change is as large as what rounding adds up to, not an infinitesimal one:
where a model is chaotic, the answers move as far as they can, and no further.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.errors import OsaError

EPS = {
    "fp32": 2.0**-23,
    "fp16": 2.0**-10,
    # The distance of neighbours next to the largest value of a channel: of 8-bit weights, and of the 7-bit ones that
    # are multiplied with 8-bit activations. The arithmetic between is float32.
    "w8": 2.0**-7,
    "w8a8": 2.0**-6,
}

# By format and type, in eps of the type.
FACTORS = {
    ("onnx", "fp32"): 32.0,
    ("torchscript", "fp32"): 32.0,
    ("pt2", "fp32"): 32.0,
    # ONNX Runtime's CPU provider has no fp16 kernels for most operators and computes in fp32 between casts, while
    # eager rounds every intermediate to fp16: the two differ by what eager loses.
    ("onnx", "fp16"): 8.0,
    ("torchscript", "fp16"): 4.0,
    ("pt2", "fp16"): 4.0,
    # Against the model before quantisation, whose every matrix was rounded once. An attention layer counts for two, and
    # its S has the errors of both Q and K: trained models and parts of them were up to 1.2 eps·√(1 + depth) away.
    ("onnx", "w8"): 2.0,
    ("onnx", "w8a8"): 2.0,
}

# One call of orthogonal attention, against its definition in float64. The bounds of the operator's own tests.
CORE_FACTOR = 16.0
# Without float64 S has the rounding errors of its terms: LARGEST_TERMS_ALONE (ops/coefficients.py) allows this much.
FLOAT32_ALONE_SHARE = 4.0
HARMLESS_NORM = 4.0  # a rotation of two tokens by ‖S‖ is up to 3.3 eps·‖S‖ away
# In tolerances of such a call: ‖AᵀA − I‖₂, which gathers the errors of whole rows, and the change of a length.
DEFECT_SHARE = 4.0
STRETCH_SHARE = 2.0

# Where rounding explains a distance beyond this, there are no digits to compare, and no verdict is possible.
NO_DIGITS_LEFT = 0.1
# The artifact may be this many times as far from float64 as eager is, where both are beyond the tolerance.
EAGER_SHARE = 2.0
# Where no digits are left, the artifact is undecided up to this many times what rounding explains, and fails beyond.
UNDECIDED_FACTOR = 4.0
# The ‖S‖₂ that a graph computes and compares with its range is an upper bound: up to this many times ‖S‖₂.
NORM_SLACK = 4.0
# A deep model may amplify whatever is rounded. Where the table does not suffice, the tolerance is how far float64 moves
# when all weights and inputs change by this many half eps of the type. Eager was up to 22 times as far from float64 as
# after a change by one half eps (twice in the median; 776 cases of all mechanisms, depths and norms up to 2000).
MOVE_FACTOR = 16.0
# Quantisation rounds each weight once, by half eps, and activations by as much.
QUANTISED_MOVE_FACTOR = 2.0
# Where only the inputs can be changed, the change grows with the depth like the tolerance does.
INPUT_FACTOR = 4.0


def relative_tolerance(format: str, dtype: str, depth: int, norm: float = 0.0) -> float:
    """The allowed distance from the truth relative to the output's largest magnitude, at most NO_DIGITS_LEFT."""
    return min(NO_DIGITS_LEFT, FACTORS[format, dtype] * EPS[dtype] * math.sqrt(1 + depth) * growth(norm))


def rounding_move(dtype: str) -> float:
    """The relative change of weights and inputs that does to the outputs what rounding does, or somewhat more."""
    return (MOVE_FACTOR if dtype in ("fp32", "fp16") else QUANTISED_MOVE_FACTOR) * EPS[dtype] / 2


def rounding_move_of_inputs(eps: float, depth: int) -> float:
    """The same change for the inputs alone."""
    return INPUT_FACTOR * eps / 2 * math.sqrt(1 + depth)


def core_tolerance(dtype: str, norm: float, core: str = "float64") -> float:
    """The same for one call of orthogonal attention, whose core is always float32; fp16 rounds its output."""
    factor = CORE_FACTOR * (FLOAT32_ALONE_SHARE if core == "float32" else 1.0)
    return min(NO_DIGITS_LEFT, factor * EPS["fp32"] * growth(norm) + (EPS["fp16"] if dtype == "fp16" else 0.0))


def growth(norm: float) -> float:
    return max(1.0, norm / HARMLESS_NORM)


Array = NDArray[Any]
Outputs = Mapping[str, Array]

SAMPLES = 3


@dataclass(frozen=True)
class Spread:
    """The answers to one case without any change, and with several: ``changed`` holds those that could be computed."""

    unchanged: Outputs
    changed: Sequence[Outputs]

    @classmethod
    def of(cls, unchanged: Outputs, run: Callable[[int], Outputs]) -> Spread:
        """Measure the spread; ``run`` returns the answers after the change with a given seed."""
        changed = []
        for seed in range(SAMPLES):
            try:
                changed.append(run(seed))
            except OsaError:  # out of range after the change: there is nothing to learn from it
                continue
        return cls(unchanged, changed)


def moved(array: Array, amount: float, generator: np.random.Generator) -> Array:
    """Floating-point values changed by up to ``amount`` of themselves, in float64."""
    if array.dtype.kind != "f":
        return array
    return array.astype(np.float64) * (1 + amount * generator.uniform(-1, 1, array.shape))
