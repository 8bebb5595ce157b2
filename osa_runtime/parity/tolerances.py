"""The one table of tolerances, as multiples of the machine epsilon of the exported type.

Two evaluations of one model in the same precision differ because they sum in another order: by a few eps in each
layer, which the isometric layers after it neither shrink nor grow. So the tolerance grows with depth. Loosening an
entry needs a reason beside it.
"""

from __future__ import annotations

EPS = {"fp32": 2.0**-23, "fp16": 2.0**-10}

# eps per layer, by format and type. Measured on the models of the tests: below 6 everywhere in fp32.
PER_LAYER = {
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
    return PER_LAYER[format, dtype] * EPS[dtype] * (1 + depth)
