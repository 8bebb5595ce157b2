"""gzip and deflate, inflated no further than the limit allows: a small body can unpack to any size."""

from __future__ import annotations

import gzip
import zlib

from osa_runtime.serving.refusals import BadRequest, TooLarge

WINDOW_BITS = {"gzip": 31, "deflate": 15}
LEVEL = 1  # tensors hardly shrink further, and time counts


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    if encoding not in WINDOW_BITS:
        raise BadRequest(f"The content encoding is {encoding[:40]!r}, expected gzip, deflate or none.")
    stream = zlib.decompressobj(WINDOW_BITS[encoding])
    try:
        result = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise BadRequest(f"The body is not valid {encoding}: {error}.") from error
    if len(result) > limit:
        raise TooLarge(f"The body unpacks to more than {limit} bytes, the limit of this server.")
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
