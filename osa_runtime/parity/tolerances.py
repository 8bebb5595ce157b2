"""The one table of tolerances, as multiples of the machine epsilon of the exported type.

Two evaluations of one model in the same precision differ because they sum in another order: by a few eps in each
layer, which add up like a random walk. So the tolerance grows with the root of the number of matrices in the model.
Loosening an entry needs a reason beside it.
"""

from __future__ import annotations

import math

EPS = {"fp32": 2.0**-23, "fp16": 2.0**-10}

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
}


def relative_tolerance(format: str, dtype: str, depth: int) -> float:
    """How far an output may be from the eager one, relative to the largest magnitude in it."""
    return FACTORS[format, dtype] * EPS[dtype] * math.sqrt(1 + depth)
