"""An inference request and its answer, whatever protocol carries them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from osa_runtime.serving.refusals import BadRequest, shown

Array = NDArray[Any]
FOREVER = 1 << 62  # microseconds
Parameter = bool | int | float | str


@dataclass(slots=True)
class RequestedOutput:
    """``classes`` asks for the likeliest classes instead of the values."""

    name: str
    binary: bool = False
    classes: int = 0


@dataclass(slots=True)
class InferenceRequest:
    """``outputs`` empty means all; ``binary`` is then how REST sends them."""

    model: str
    version: str
    inputs: dict[str, Array]
    outputs: list[RequestedOutput] = field(default_factory=list)
    id: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)
    binary: bool = False
    trace: str = ""  # the caller's traceparent

    @property
    def timeout(self) -> float | None:
        """Seconds; the protocol's parameter counts microseconds."""
        value = self.parameters.get("timeout")
        if value is None or value == 0:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise BadRequest(f"The parameter timeout is {shown(value)}, expected whole microseconds above 0.")
        return min(value, FOREVER) / 1e6

    @property
    def allows_nonfinite(self) -> bool:
        value = self.parameters.get("allow_nonfinite", False)
        if not isinstance(value, bool):
            raise BadRequest(f"The parameter allow_nonfinite is {shown(value)}, expected true or false.")
        return value


@dataclass(slots=True)
class InferenceResponse:
    model: str
    version: str
    id: str
    outputs: dict[str, Array]
    class_names: tuple[str, ...] = ()
