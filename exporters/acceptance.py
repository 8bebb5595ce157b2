"""What an artifact must pass before it gets its name: the eager answers, on its example and at other sizes."""

from __future__ import annotations

from torch import nn

from osa_runtime.errors import ExportError
from osa_runtime.exporters.interface import Interface
from osa_runtime.exporters.runners import Run, eager_runner
from osa_runtime.parity import compare


def check_answers(
    module: nn.Module, run: Run, interface: Interface, outputs: tuple[str, ...], tolerance: float
) -> None:
    """Compare with eager on the example, then with each dynamic axis at sizes that the capture has not seen.

    An axis that became static fails here and is named.
    """
    eager = eager_runner(module)
    for axis, inputs in [(None, interface.examples), *interface.other_sizes()]:
        where = "on the example inputs" if axis is None else f"with the axis '{axis[0]}' at size {axis[1]}"
        expected = eager(inputs)
        try:
            actual = run(inputs)
        except Exception as error:
            reason = " ".join(str(error).split())[:400]
            hint = "" if axis is None else f" The axis '{axis[0]}' was declared dynamic and became static."
            raise ExportError(f"The exported model does not run {where}.{hint} ({reason})") from error
        if len(actual) != len(expected):
            raise ExportError(f"The exported model has {len(actual)} outputs {where}, eager has {len(expected)}.")
        for name, a, b in zip(outputs, actual, expected, strict=True):
            result = compare(a, b, tolerance)
            if not result:
                raise ExportError(f"The output '{name}' differs from eager {where}: {result.reason}.")
