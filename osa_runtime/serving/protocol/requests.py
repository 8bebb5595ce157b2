"""Requests of both transports: checks before anything of their size is allocated, and compression.

gzip and deflate are inflated no further than the limits allow: a small body can unpack to any size.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from osa_runtime.serving.engine.limits import LARGE
from osa_runtime.serving.engine.messages import Parameter, RequestedOutput
from osa_runtime.serving.protocol.tensors import DTYPES
from osa_runtime.serving.refusals import LONGEST_NAME, BadRequest, TooLarge, shown

MAX_TENSORS = 1000
MAX_RANK = 16
LONGEST_ID = 1024  # characters

CheckShapes = Callable[[Mapping[str, tuple[str, tuple[int, ...]]]], None]  # by name of the input: type and shape


def check_count(count: int, where: str) -> None:
    if count > MAX_TENSORS:
        raise BadRequest(f"{where} has {count} entries, expected at most {MAX_TENSORS}.")


def check_rest(size: int) -> None:
    """Check the bytes of a request that are not values of its tensors."""
    if size > LARGE:
        raise TooLarge(f"Names, shapes and parameters take more than {LARGE} bytes of the request.")


def check_id(value: str) -> str:
    if len(value) > LONGEST_ID:
        raise BadRequest(f"The id has {len(value)} characters, expected at most {LONGEST_ID}.")
    return value


def check_input(name: str, parameters: Mapping[str, Any], known: Container[str]) -> None:
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


def requested_outputs(
    items: Sequence[Any], read: Callable[[Any], tuple[str, Mapping[str, Parameter], bool]]
) -> list[RequestedOutput]:
    """The outputs that a request names; ``read`` returns a name, its parameters, and True for raw bytes."""
    check_count(len(items), "outputs")
    outputs = [_requested(name[:LONGEST_NAME], parameters, binary) for name, parameters, binary in map(read, items)]
    if len({output.name for output in outputs}) != len(outputs):
        raise BadRequest("outputs names an output twice; name each once.")
    return outputs


def _requested(name: str, parameters: Mapping[str, Parameter], binary: bool) -> RequestedOutput:
    if "shared_memory_region" in parameters:
        raise BadRequest(f"Output {name} is wanted in shared memory, which this server does not have.")
    count = parameters.get("classification", 0)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise BadRequest(f"classification of output {name} is {shown(count)}, expected a whole number of at least 0.")
    return RequestedOutput(name, binary, count)


WINDOW_BITS = {"gzip": 31, "deflate": 15}
LEVEL = 1  # tensors hardly shrink further, and time counts
RATIO, FREE = 100, 4 << 20  # how many times its size a body may unpack to; below so many bytes any


def decompress(body: bytes | bytearray, encoding: str, limit: int) -> bytes:
    if encoding not in WINDOW_BITS:
        raise BadRequest(f"The content encoding is {encoding[:40]!r}, expected gzip, deflate or none.")
    stream = zlib.decompressobj(WINDOW_BITS[encoding])
    most = min(limit, max(FREE, RATIO * len(body)))
    try:
        result = stream.decompress(body, most + 1)
    except zlib.error as error:
        raise BadRequest(f"The body is not valid {encoding}: {error}.") from error
    if len(result) > most:
        why = "the limit here" if most == limit else f"{RATIO} times its size; send it as it is"
        raise TooLarge(f"The body unpacks to more than {most} bytes, {why}.")
    if not stream.eof or stream.unused_data:
        raise BadRequest(f"The body is not valid {encoding}: it is cut short, or something follows it.")
    return result


def compress(body: bytes, encoding: str) -> bytes:
    return gzip.compress(body, LEVEL, mtime=0) if encoding == "gzip" else zlib.compress(body, LEVEL)


def accepted_encoding(header: str) -> str | None:
    """The first of our encodings that an Accept-Encoding header admits."""
    for item in header.lower().split(","):
        name, _, quality = item.partition(";")
        if name.strip() in WINDOW_BITS and quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            return name.strip()
    return None
