"""Clients that ask without a pause, and note every answer."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

CLIENTS = 8
PATIENCE = 60  # seconds; a request that takes longer hangs


@dataclass(frozen=True)
class Failure:
    """A request that was answered with an error, or whose connection ended before its answer was whole."""

    began: float
    ended: float
    what: str


class InferenceLoad:
    """Runs from the beginning to the end of its block, and repeats nothing.

    ``right[i]`` counts answers equal to ``expected[i]``. Other requests end in ``failures`` (clean: the client knows
    that it got nothing), in ``wrong`` (a 200 with other values) or in ``lost`` (none in time).
    """

    def __init__(self, port: int, model: str, image: NDArray[np.float32], *expected: NDArray[np.float32]) -> None:
        self._port, self._path = port, f"/v2/models/{model}/infer"
        tensor = {"name": "images", "datatype": "FP32", "shape": image.shape, "data": image.ravel().tolist()}
        self._body = json.dumps({"inputs": [tensor]})
        self._expected: Sequence[NDArray[np.float32]] = [array.ravel() for array in expected]
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(CLIENTS)]
        self.right = [0] * len(expected)
        self.failures: list[Failure] = []
        self.wrong: list[str] = []
        self.lost: list[str] = []

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        while not self._stop.is_set():
            began = time.monotonic()
            failure = self._exchange(connection)
            if failure is not None:
                self.failures.append(Failure(began, time.monotonic(), failure))
        connection.close()

    def _exchange(self, connection: http.client.HTTPConnection) -> str | None:
        """Send one request; returns the reason of a clean failure."""
        try:
            connection.request("POST", self._path, self._body)
            answer = connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
            connection.close()
            return f"closed: {error!r}"
        except (OSError, http.client.HTTPException) as error:
            self._lose(connection, error)
            return None
        try:
            body = answer.read()
        except http.client.IncompleteRead as error:
            connection.close()
            return f"cut: {error!r}"
        except (OSError, http.client.HTTPException) as error:
            self._lose(connection, error)
            return None
        if answer.status != 200:
            return f"{answer.status}: {body.decode()[:200]}"
        self._compare(np.array(json.loads(body)["outputs"][0]["data"], np.float32))
        return None

    def _lose(self, connection: http.client.HTTPConnection, error: Exception) -> None:
        self.lost.append(repr(error))
        connection.close()

    def _compare(self, got: NDArray[np.float32]) -> None:
        for number, expected in enumerate(self._expected):
            if np.allclose(got, expected, rtol=1e-4, atol=1e-4):
                self.right[number] += 1
                return
        self.wrong.append(f"{got}")

    def check_perfect(self) -> None:
        """Every request got a right answer."""
        assert (self.wrong, self.lost, self.failures) == ([], [], [])

    def check_killed(self, moment: float, noticed: float, each: int) -> None:
        """Only requests that were under way at this moment may have failed, or began until it was noticed, so many
        seconds later: no more than ``each`` per client, and only cleanly."""
        assert (self.wrong, self.lost) == ([], []), (self.wrong, self.lost)
        late = [failure for failure in self.failures if not failure.began - noticed <= moment <= failure.ended]
        assert late == [], (moment, self.failures)
        assert len(self.failures) <= each * CLIENTS, self.failures

    def wait_for(self, number: int) -> None:
        """Wait for this many more right answers."""
        goal, end = sum(self.right) + number, time.monotonic() + PATIENCE
        while sum(self.right) < goal:
            assert time.monotonic() < end, (
                f"{self.right} of {goal}; {self.failures[-3:]} {self.wrong[-3:]} {self.lost[-3:]}"
            )
            time.sleep(0.02)

    def __enter__(self) -> InferenceLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            if thread.is_alive():
                self.lost.append("a client still waits")
