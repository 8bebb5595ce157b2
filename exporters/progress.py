"""The steps of an export, told as they happen, with the step's name in every error."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from osa_runtime.errors import ExportError, OsaError

Listener = Callable[[str, float | None], None]


def _silent(step: str, seconds: float | None) -> None:  # a listener's signature
    pass


class Progress:
    """Calls ``listener(step, None)`` when a step starts and ``listener(step, seconds)`` when it is done."""

    def __init__(self, listener: Listener | None = None) -> None:
        self._tell = listener or _silent

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        self._tell(name, None)
        start = time.perf_counter()
        try:
            yield
        except (OsaError, KeyboardInterrupt):
            raise
        except Exception as error:
            reason = " ".join(str(error).split())
            raise ExportError(f"Export failed at the step '{name}': {type(error).__name__}: {reason[:600]}") from error
        self._tell(name, time.perf_counter() - start)
