"""Structured logs: one JSON object per line on standard error."""

from __future__ import annotations

import contextlib
import sys
import threading
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson

LEVELS = ("debug", "info", "warning", "error")


class Log:
    """Safe to use from any thread. ``requests`` adds a line for every inference request."""

    def __init__(
        self, level: str = "info", *, requests: bool = False, stream: TextIO | None = None, worker: int | None = None
    ) -> None:
        self._least = LEVELS.index(level)
        self._stream = stream or sys.stderr
        self._lock = threading.Lock()
        self.requests = requests
        self._worker = worker

    def info(self, event: str, **fields: Any) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        if LEVELS.index(level) < self._least:
            return
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        fields = {"worker": self._worker} | fields
        line = {"time": time, "level": level, "event": event} | {k: v for k, v in fields.items() if v is not None}
        with self._lock, contextlib.suppress(OSError, ValueError):  # the reader of the log is gone; go on serving
            self._stream.write(orjson.dumps(line, default=str).decode() + "\n")
            self._stream.flush()
