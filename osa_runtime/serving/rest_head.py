"""The head of a REST inference request: what its target and headers say about the body and the answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from osa_runtime.serving.compression import accepted_encoding
from osa_runtime.serving.refusals import BadRequest

TARGET = re.compile(rb"/v2/models/([^/?#]{1,400})(?:/versions/([^/?#]{1,40}))?/infer(?:\?.*)?")


@dataclass(slots=True, frozen=True)
class RequestHead:
    model: str
    version: str
    json_size: str | None  # as the header has it; the rest of the body are raw tensors
    encoding: str | None
    answer_encoding: str | None
    trace: str  # the caller's traceparent


def read_head(target: bytes, headers: Mapping[bytes, bytes]) -> RequestHead:
    match = TARGET.fullmatch(target)
    if match is None:
        raise BadRequest("The path is not that of an inference request.")
    name, version = match.groups()
    accepts = headers.get(b"accept-encoding")
    return RequestHead(
        unquote(name.decode("latin-1")),
        version.decode("latin-1") if version else "",
        _text(headers.get(b"inference-header-content-length")),
        _text(headers.get(b"content-encoding")),
        accepted_encoding(accepts.decode("latin-1")) if accepts else None,
        _text(headers.get(b"traceparent")) or "",
    )


def _text(value: bytes | None) -> str | None:
    return value.decode("latin-1") if value is not None else None
