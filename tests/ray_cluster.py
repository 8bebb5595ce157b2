"""The cluster of ray_three_nodes.py as a test sees it: orders, replicas as processes, and what HAProxy counts."""

from __future__ import annotations

import csv
import json
import os
import queue
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

ONLY_WITH_ALL = pytest.mark.skipif(not os.environ.get("OSA_TEST_RAY_ALL"), reason="takes long; run: make test-ray")
PATIENCE = 120  # seconds; far more than anything here takes on a busy machine


class RayCluster:
    def __init__(self, python: Path, config: Path, environment: dict[str, str]) -> None:
        script = Path(__file__).with_name("ray_three_nodes.py")
        self.process = subprocess.Popen(
            [python, script, config],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._noise: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        started = self._answer()
        self.nodes, self.address = started["nodes"], started["address"]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("> "):
                self._answers.put(json.loads(line[2:]))
            else:
                self._noise.append(line)

    def _answer(self) -> dict[str, Any]:
        for _ in range(PATIENCE):
            try:
                return self._answers.get(timeout=1)
            except queue.Empty:
                assert self.process.poll() is None, "".join(self._noise)
        raise AssertionError("no answer; it said: " + "".join(self._noise))

    def deploy(self, arguments: dict[str, Any], **order: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"arguments": arguments} | order) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


class RayHead:
    """``ray start`` with its dashboard, which ``serve deploy`` needs, in a shell that has read ``environment_file``."""

    DASHBOARD = "http://127.0.0.1:8265"
    FLAGS = "--head --block --num-cpus 3 --node-ip-address 127.0.0.1 --dashboard-host 127.0.0.1 --disable-usage-stats"

    def __init__(self, programs: Path, environment_file: str, environment: dict[str, str], log: Path) -> None:
        self._serve, self._environment = programs / "serve", environment
        script = f'. "$1"; exec "$2" start {self.FLAGS}'
        with log.open("w") as said:
            self.process = subprocess.Popen(
                ["sh", "-c", script, "sh", environment_file, programs / "ray"],
                stdout=said,
                stderr=said,
                env=environment,
            )
        end = time.monotonic() + PATIENCE
        while not self._ready():
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.5)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.DASHBOARD + "/api/serve/applications/", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def deploy(self, config: Path, until: str = "RUNNING") -> str:
        """With Ray's own command. Return what it says of the application that is in the state."""
        self._run("deploy", str(config))
        status = ""
        for _ in range(PATIENCE):
            status = self._run("status")
            if f"status: {until}\n" in status:
                return status
            time.sleep(1)
        raise AssertionError(f"not {until}: {status}")

    def _run(self, command: str, *arguments: str) -> str:
        done = subprocess.run(
            [self._serve, command, "--address", self.DASHBOARD, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def __enter__(self) -> RayHead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run("shutdown", "--yes")
        self.process.terminate()
        self.process.wait(PATIENCE)


def replica_processes() -> list[int]:
    return [pid for pid, title in ray_processes() if title.startswith("ray::ServeReplica:osa:")]


def ray_processes() -> list[tuple[int, str]]:
    """In the network of this thread, so that another Ray on the machine does not count."""
    here = os.readlink("/proc/thread-self/ns/net")
    titles = [(pid, _title(pid, here)) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))]
    return [(pid, title) for pid, title in titles if "ray" in title.lower() or "haproxy" in title]


def wait_for_the_end() -> None:
    """Until no process of Ray is left; some end a moment after the one that started them."""
    for _ in range(PATIENCE * 4):
        if not ray_processes():
            return
        time.sleep(0.25)
    raise AssertionError(f"still there: {ray_processes()}")


def _title(pid: int, network: str) -> str:
    """Empty for a process that is elsewhere, or has ended since, or is this one."""
    try:
        if pid == os.getpid() or os.readlink(f"/proc/{pid}/ns/net") != network:
            return ""
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def wait_for_replicas(number: int) -> list[int]:
    """Processes, and servers that HAProxy sends requests to."""
    for _ in range(PATIENCE * 4):
        found = replica_processes()
        if len(found) == number == len(serving()):
            return found
        time.sleep(0.25)
    raise AssertionError(f"replicas {replica_processes()}, in HAProxy {serving()}, expected {number}")


def serving() -> dict[str, int]:
    """The requests that HAProxy has sent to each replica that is up, since it was last configured."""
    with urllib.request.urlopen("http://127.0.0.1:8404/stats;csv", timeout=10) as answer:
        rows = csv.DictReader(answer.read().decode().lstrip("# ").splitlines())
        return {row["svname"]: int(row["stot"]) for row in rows if _counts(row)}


def _counts(row: dict[str, str]) -> bool:
    a_server = row["svname"] not in ("FRONTEND", "BACKEND") and row["pxname"].startswith("http")
    return a_server and row["bck"] == "0" and row["status"].startswith("UP")
