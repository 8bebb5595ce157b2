"""Checks of an inference request that REST and gRPC share, made before anything of its size is allocated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from osa_runtime.serving.engine.messages import Parameter, RequestedOutput
from osa_runtime.serving.protocol.tensors import DTYPES
from osa_runtime.serving.refusals import BadRequest, TooLarge, shown

MAX_TENSORS = 1000
MAX_RANK = 16
LONGEST_ID = 1024  # characters

CheckShapes = Callable[[Mapping[str, tuple[str, tuple[int, ...]]]], None]  # by name of the input: type and shape


def check_count(count: int, where: str) -> None:
    if count > MAX_TENSORS:
        raise BadRequest(f"{where} has {count} entries, expected at most {MAX_TENSORS}.")


def check_id(value: str) -> str:
    if len(value) > LONGEST_ID:
        raise BadRequest(f"The id has {len(value)} characters, expected at most {LONGEST_ID}.")
    return value


def check_input(name: str, parameters: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    if name in known:
        raise BadRequest(f"Input {name} is given twice; give each input once.")
    if "shared_memory_region" in parameters:
        raise BadRequest(f"Input {name} lies in shared memory, which this server does not have; send it as bytes.")


def check_shape(name: str, shape: Any, datatype: Any, max_bytes: int) -> tuple[int, ...]:
    if not isinstance(shape, list) or len(shape) > MAX_RANK or any(type(size) is not int or size < 0 for size in shape):
        raise BadRequest(f"Input {name} has the shape {shown(shape)}, expected a list of whole numbers of at least 0.")
    dtype = DTYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        known = ", ".join(DTYPES)
        raise BadRequest(f"Input {name} has the datatype {shown(datatype)}, expected one of {known}.")
    total = math.prod(max(1, size) for size in shape) * dtype.itemsize  # numpy multiplies next to an empty axis, too
    if total > max_bytes:
        refusal = BadRequest if 0 in shape else TooLarge
        size = f"its axes come to {shown(total)} bytes, expected at most {max_bytes}"
        raise refusal(f"Input {name} of shape {shown(shape)} is too large: {size}.")
    return tuple(shape)


def check_output(name: str, parameters: Mapping[str, Parameter], *, binary: bool) -> RequestedOutput:
    if "shared_memory_region" in parameters:
        raise BadRequest(f"Output {name} is wanted in shared memory, which this server does not have.")
    count = parameters.get("classification", 0)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise BadRequest(f"classification of output {name} is {shown(count)}, expected a whole number of at least 0.")
    return RequestedOutput(name, binary, count)


def check_outputs(outputs: Sequence[RequestedOutput]) -> None:
    if len({output.name for output in outputs}) != len(outputs):
        raise BadRequest("outputs names an output twice; name each once.")
