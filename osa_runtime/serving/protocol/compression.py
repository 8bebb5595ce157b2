"""gzip and deflate, inflated no further than the limits allow: a small body can unpack to any size."""

from __future__ import annotations

import gzip
import zlib

from osa_runtime.serving.refusals import BadRequest, TooLarge

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
