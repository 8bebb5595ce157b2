"""Clients that ask without a pause, and note every answer."""

from __future__ import annotations

import http.client
import json
import threading
import time
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

CLIENTS = 8
PATIENCE = 60  # seconds


class InferenceLoad:
    """Runs from the beginning to the end of its block. ``failures`` were answered, ``lost`` were not.

    A connection that was used before and ends without a byte of an answer is HTTP's sign to send again; the clients do
    so once, and ``repeated`` counts it.
    """

    def __init__(self, port: int, model: str, image: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
        self._port, self._path = port, f"/v2/models/{model}/infer"
        tensor = {"name": "images", "datatype": "FP32", "shape": image.shape, "data": image.ravel().tolist()}
        self._body = json.dumps({"inputs": [tensor]})
        self._expected = expected.ravel()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(CLIENTS)]
        self._right = 0
        self.failures: list[str] = []
        self.lost: list[str] = []
        self.repeated = 0

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        while not self._stop.is_set():
            used = connection.sock is not None
            try:
                try:
                    self._exchange(connection)
                except http.client.RemoteDisconnected:
                    if not used:
                        raise
                    self.repeated += 1
                    self._exchange(connection)
            except (OSError, http.client.HTTPException) as error:
                self.lost.append(repr(error))
                connection.close()
        connection.close()

    def _exchange(self, connection: http.client.HTTPConnection) -> None:
        connection.request("POST", self._path, self._body)
        answer = connection.getresponse()
        self._note(answer.status, answer.read())

    def _note(self, status: int, body: bytes) -> None:
        if status != 200:
            self.failures.append(f"{status}: {body.decode()[:200]}")
            return
        got = np.array(json.loads(body)["outputs"][0]["data"], np.float32)
        if not np.allclose(got, self._expected, rtol=1e-4, atol=1e-4):
            self.failures.append(f"wrong answer: {got}")
            return
        self._right += 1

    def wait_for(self, number: int) -> None:
        """So many more right answers."""
        goal, end = self._right + number, time.monotonic() + PATIENCE
        while self._right < goal:
            assert time.monotonic() < end, f"{self._right} of {goal} answers; {self.failures[-3:]} {self.lost[-3:]}"
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
