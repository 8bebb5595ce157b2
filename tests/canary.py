"""A server under attack, and a canary: a client that asks it valid questions all the while.

The canary is a process of its own, so that the attacker's work cannot hold it up. ``Target.watched`` asserts after an
attack that every answer was right and in time, that the server's memory has not grown and that nothing was logged.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import mmap
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from serving_process import ServerProcess

LATEST = 0.5  # seconds from question to answer
MORE_MEMORY = 300 << 20  # bytes above those at the start
PAUSE = 0.01  # seconds between two questions


class Target:
    """``server`` serves ``model``, a small image classifier; ``questions`` are what the canary has asked so far."""

    def __init__(self, folder: Path, *options: str | Path, token: str = "") -> None:
        _touch_memory()
        self.model = folder.name
        self.server = ServerProcess(folder, *options)
        pid = self.server.process.pid
        command = [sys.executable, __file__, self.server.http, self.server.grpc, str(folder), str(pid), token]
        self._canary = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.questions: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._wait_for_question_after(time.monotonic())
        self.memory = read_memory(pid)

    def _read(self) -> None:
        assert self._canary.stdout is not None
        for line in self._canary.stdout:
            with self._changed:
                self.questions.append(json.loads(line))
                self._changed.notify_all()

    def _wait_for_question_after(self, moment: float) -> None:
        with self._changed:
            asked = self._changed.wait_for(lambda: self.questions and self.questions[-1]["asked"] > moment, 60)
        assert asked, f"the canary is silent; the server's exit code is {self.server.process.poll()}"

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Check that the work inside does not slow other clients."""
        before = len(self.questions)
        logged = len(self.server.events)
        yield
        self._wait_for_question_after(time.monotonic())
        asked = self.questions[max(0, before - 1) :]
        assert [q["fault"] for q in asked if q["fault"]] == []
        late = [q for q in asked if max(q["seconds"] - q["machine"], q["busy"]) > LATEST]
        assert late == [], f"answers later than {LATEST} s: {late}"
        most = max(q["memory"] for q in asked)
        assert most - self.memory < MORE_MEMORY, f"{most >> 20} MB, {self.memory >> 20} MB at the start"
        assert self.server.process.poll() is None
        assert self.server.noise == []
        assert [e for e in self.server.events[logged:] if e.get("level") == "error"] == []

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._canary.stdin is not None
        self._canary.stdin.close()
        self._canary.wait(30)
        self._reader.join(30)
        assert self._canary.stdout is not None
        self._canary.stdout.close()
        assert self.server.stop() == 0


def read_memory(pid: int) -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@functools.cache
def _touch_memory() -> None:
    """A virtual machine has a page only once it is touched, and waits for its host meanwhile: 10 µs each, which no
    counter shows. Those that attacks need are touched here, once."""
    with mmap.mmap(-1, 512 << 20) as memory:
        for place in range(0, len(memory), mmap.PAGESIZE):
            memory[place] = 1


def _held_up(*pids: int) -> float:
    """Seconds that threads of these processes were ready to run and had to wait for a core, or the core for its host.

    Of all their threads: one that waits may hold the interpreter's lock, or what gRPC has to say. Those that wait at
    the same time are counted each, so that this alone would excuse too much: see ``_busy``.
    """
    total = int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) * 1e9 / os.sysconf("SC_CLK_TCK")  # steal
    for pid in pids:
        for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # the thread has just ended
                total += int(file.read_text().split()[1])
    return total / 1e9


def _busy(pid: int) -> float:
    """Seconds that the first thread of a process has run: in a server, that of the event loop."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


class Canary:
    """Both its connection of REST and its stream of gRPC are kept, so that they have their places in any attack."""

    def __init__(self, address: str, grpc_address: str, folder: Path, pid: int, token: str) -> None:
        from osa_runtime import load

        self._address, self._pid, self._model = address, pid, folder.name
        self._images = np.random.default_rng(7).standard_normal((8, 1, 8, 8)).astype(np.float32)
        session = load(folder, threads=1)
        self._logits = [session.run({"images": self._images[i : i + 1]})["logits"] for i in range(8)]
        self._path = f"/v2/models/{folder.name}/infer"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._kept = http.client.HTTPConnection(address, timeout=30)
        self._messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        metadata = [("authorization", f"Bearer {token}")] if token else []
        channel = grpc.insecure_channel(grpc_address)
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        self._health = channel.unary_unary("/grpc.health.v1.Health/Check")
        self._answers = stream(iter(self._messages.get, None), metadata=metadata)

    def ask(self, number: int) -> dict[str, Any]:
        """Most questions come over what is kept; every fifth is a probe, over REST on a new connection."""
        by_grpc = number % 3 == 0
        before, busy, asked = _held_up(os.getpid(), self._pid), _busy(self._pid), time.monotonic()
        try:
            if number % 5 == 0:
                fault = self._check() if by_grpc else self._probe(number)
            elif by_grpc:
                fault = self._stream(number % 8)
            else:
                fault = self._infer(number % 8, binary=number % 2 == 0)
        except (OSError, http.client.HTTPException, grpc.RpcError) as error:
            fault = repr(error)
        seconds = time.monotonic() - asked
        return {
            "asked": asked,
            "by": "gRPC" if by_grpc else "REST",
            "seconds": seconds,
            "machine": _held_up(os.getpid(), self._pid) - before,
            "busy": _busy(self._pid) - busy,
            "memory": read_memory(self._pid),
            "fault": fault,
        }

    def _probe(self, number: int) -> str:
        path = "/v2/health/live" if number % 2 else "/v2/health/ready"
        with contextlib.closing(http.client.HTTPConnection(self._address, timeout=30)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return "" if answer.status == 200 else f"{path}: {answer.status} {answer.read()!r}"

    def _check(self) -> str:
        """Over the kept connection: gRPC has a limit of connections, which an attack may reach."""
        answer = self._health(b"", timeout=30)
        return "" if answer == b"\x08\x01" else f"health: {answer!r}"

    def _stream(self, number: int) -> str:
        request = pb.ModelInferRequest(model_name=self._model, raw_input_contents=[self._images[number].tobytes()])
        request.inputs.add(name="images", datatype="FP32", shape=[1, 1, 8, 8])
        self._messages.put(request.SerializeToString())
        answer = pb.ModelStreamInferResponse.FromString(next(self._answers))
        if answer.error_message:
            return answer.error_message
        return self._compare(number, np.frombuffer(answer.infer_response.raw_output_contents[0], np.float32))

    def _infer(self, number: int, *, binary: bool) -> str:
        image = self._images[number]
        tensor: dict[str, Any] = {"name": "images", "datatype": "FP32", "shape": [1, 1, 8, 8]}
        extra = {"parameters": {"binary_data_size": image.nbytes}} if binary else {"data": image.ravel().tolist()}
        body = json.dumps({"inputs": [tensor | extra]}).encode()
        headers = self._headers | ({"Inference-Header-Content-Length": str(len(body))} if binary else {})
        self._kept.request("POST", self._path, body + image.tobytes() if binary else body, headers)
        answer = self._kept.getresponse()
        content = answer.read()
        if answer.status != 200:
            return f"{answer.status} {content!r}"
        return self._compare(number, np.array(json.loads(content)["outputs"][0]["data"]))

    def _compare(self, number: int, given: Any) -> str:
        return "" if np.allclose(given, self._logits[number].ravel(), rtol=1e-4, atol=1e-5) else f"wrong: {given}"


def main(address: str, grpc_address: str, folder: str, pid: str, token: str) -> None:
    """Ask until standard input is closed; a line of JSON for each question."""
    canary, end = Canary(address, grpc_address, Path(folder), int(pid), token), threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), end.set()), daemon=True).start()
    number = 0
    while not end.wait(PAUSE):
        number += 1
        sys.stdout.write(json.dumps(canary.ask(number)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
