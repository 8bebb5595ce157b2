"""What an artifact must pass before it gets its name: the eager answers, on its example and at other sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from osa_runtime.errors import ExportError, InputError
from osa_runtime.exporters.interface import Interface
from osa_runtime.exporters.runners import Array, Run, eager_runner
from osa_runtime.parity import compare

Axis = tuple[str, int] | None


def check_answers(
    module: nn.Module,
    run: Run,
    interface: Interface,
    outputs: tuple[str, ...],
    tolerance: float,
    squarings: object = "auto",
) -> None:
    """Compare with eager on the example, then with each dynamic axis at sizes that the capture has not seen.

    An axis that became static fails here and is named. ``squarings`` is what the artifact has.
    """
    eager = eager_runner(module)
    for axis, inputs in [(None, interface.examples), *interface.other_sizes()]:
        expected = eager(inputs)
        if not all(np.isfinite(x).all() for x in expected):
            raise _not_finite(interface, axis)
        actual = _answer(run, inputs, axis)
        if len(actual) != len(expected):
            raise ExportError(f"The exported model has {len(actual)} outputs {_at(axis)}, eager has {len(expected)}.")
        for name, a, b in zip(outputs, actual, expected, strict=True):
            result = compare(a, b, tolerance)
            if not result:
                hint = _too_few(a, squarings)
                raise ExportError(f"The output '{name}' differs from eager {_at(axis)}: {result.reason}.{hint}")


def _answer(run: Run, inputs: Sequence[Tensor], axis: Axis) -> list[Array]:
    try:
        return run(inputs)
    except Exception as error:
        reason = " ".join(str(error).split())[:400]
        hint = "" if axis is None else f" The axis '{axis[0]}' was declared dynamic and became static."
        raise ExportError(f"The exported model does not run {_at(axis)}.{hint} ({reason})") from error


def _at(axis: Axis) -> str:
    return "on the example inputs" if axis is None else f"with the axis '{axis[0]}' at size {axis[1]}"


def _not_finite(interface: Interface, axis: Axis) -> InputError:
    if axis is not None:
        return interface.beyond(axis, "gives NaN or Inf")
    return InputError("The module itself gives NaN or Inf on the example inputs; give an example that it can answer.")


def _too_few(actual: Array, squarings: object) -> str:
    """A graph cannot raise an error where a fixed number of squarings does not suffice: it gives NaN."""
    if squarings in (None, "auto") or np.isfinite(actual).all():
        return ""
    return f" It has a fixed number of squarings ({squarings}): use more with --squarings, or --squarings auto."
