"""What the connections of both protocols share: the next request goes out when the answer to the last has come."""

from __future__ import annotations

import asyncio
import time

from serving_load.load import Recorder


class ClosedLoopConnection(asyncio.Protocol):
    """``number`` is where in the list of requests it begins, so that connections ask different things."""

    def __init__(self, recorder: Recorder, number: int) -> None:
        self._recorder, self._next = recorder, number
        self._sent = 0.0
        self._left = False

    def _send(self) -> None:
        raise NotImplementedError

    def _answered(self, answer: bytes) -> None:
        now, recorder = time.perf_counter(), self._recorder
        recorder.answers.append((self._next % len(recorder.requests), self._sent, now, answer))
        self._next += 1
        if now < recorder.end:
            self._send()
        else:
            self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave(f"the server closed the connection: {exc}")

    def _leave(self, failure: str = "") -> None:
        if not self._left:
            self._left = True
            self._recorder.leave(failure)
