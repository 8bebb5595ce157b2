"""A server in processes of its own, from its start until it is ready to its end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from serving_load.environments import Missing
from serving_load.machine import memory

HERE = Path(__file__).resolve().parent
START_SECONDS, STOP_SECONDS = 120, 30

Command = Callable[[int, int], Sequence[str | Path]]  # of the HTTP and the gRPC port


class Contender:
    """``http`` and ``grpc`` hold an address for each process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.http: list[tuple[str, int]] = []
        self.grpc: list[tuple[str, int]] = []
        self.processes: list[int] = []
        self.closing = contextlib.ExitStack()

    def add(self, process: int, http: int, grpc: int) -> None:
        self.processes.append(process)
        self.http.append(("127.0.0.1", http))
        self.grpc.append(("127.0.0.1", grpc))

    def launch(self, command: Command) -> None:
        http, grpc = free_ports(2)
        log = self.closing.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115 - closed with the rest
        variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
        child = subprocess.Popen(command(http, grpc), stdout=log, stderr=subprocess.STDOUT, env=variables)
        self.closing.callback(_stop, child)
        self.add(child.pid, http, grpc)
        end = time.monotonic() + START_SECONDS
        while not _is_ready(http):
            if child.poll() is not None or time.monotonic() > end:
                log.seek(0)
                reason = log.read().strip()[-500:]
                self.closing.close()
                raise Missing(f"{self.name} did not start: {reason}")
            time.sleep(0.2)

    def memory(self) -> float:
        return sum(map(memory, self.processes))


def free_ports(count: int) -> list[int]:
    """Held open together, so that all differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in sockets]


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:  # nobody listens yet, or the answer is that it is not ready
        return False


def _stop(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
