"""Whether the checkpoint gives the artifact's answers: the speed of a wrong answer is not worth reporting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.parity import compare, relative_tolerance

Array = NDArray[Any]


def is_half(outputs: Mapping[str, Array]) -> bool:
    return any(output.dtype == np.float16 for output in outputs.values())


def disagreement(
    ours: Mapping[str, Array],
    theirs: Sequence[Array],
    format: str,  # noqa: A002
    depth: int,
    dtype: str | None = None,
) -> str | None:
    """What differs between the artifact's outputs and eager's by more than rounding; None when nothing does."""
    if len(ours) != len(theirs):
        return f"the artifact has {len(ours)} outputs, eager has {len(theirs)}"
    tolerance = relative_tolerance(format, dtype or ("fp16" if is_half(ours) else "fp32"), depth)
    for (name, actual), expected in zip(ours.items(), theirs, strict=True):
        result = compare(actual, expected, tolerance)
        if not result:
            return f"output {name}: {result.reason}"
    return None
