"""Requests of hostile REST clients, byte by byte, and the servers that they are sent to."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from canary import Target

Exported = Callable[[str, str], Path]
TENSOR: dict[str, Any] = {"name": "images", "datatype": "FP32", "shape": [1, 1, 8, 8]}
HOST = "Host: 127.0.0.1\r\n"


def connect(target: Target) -> socket.socket:
    host, _, port = target.server.http.partition(":")
    return socket.create_connection((host, int(port)), 30)


def send(target: Target, raw: bytes) -> bytes:
    """All that the server says to these bytes until it closes."""
    with connect(target) as sock:
        with contextlib.suppress(ConnectionError):  # it may have closed before the last byte
            sock.sendall(raw)
        return sock.makefile("rb").read()


def head(target: Target, *headers: str, path: str = "", method: str = "POST") -> bytes:
    path = path or f"/v2/models/{target.model}/infer"
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"{method} {path} HTTP/1.1\r\n{HOST}{lines}Connection: close\r\n\r\n".encode()


def infer(target: Target, body: bytes | dict[str, Any], *headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return send(target, head(target, f"Content-Length: {len(content)}", *headers) + content)


def tensor(**fields: Any) -> dict[str, Any]:
    return {"inputs": [TENSOR | {"data": [0.5] * 64} | fields]}


def status(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer[:100]
    return int(answer[9:12])


def is_refused(answer: bytes) -> bool:
    return 400 <= status(answer) < 500 and answer.count(b"HTTP/1.1 ") == 1


VALID = json.dumps(tensor()).encode()
