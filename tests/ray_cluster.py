"""A Ray of one node, started and told what to serve by Ray's own commands, and its replicas as processes."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

PATIENCE = 120  # seconds; far more than anything here takes on a busy machine


class RayHead:
    """``ray start`` with its dashboard, which ``serve deploy`` needs."""

    DASHBOARD = "http://127.0.0.1:8265"
    FLAGS = "--head --block --num-cpus 3 --node-ip-address 127.0.0.1 --dashboard-host 127.0.0.1 --disable-usage-stats"

    def __init__(self, programs: Path, environment: dict[str, str], log: Path) -> None:
        self._serve, self._environment = programs / "serve", environment
        with log.open("w") as said:
            command = [programs / "ray", "start", *self.FLAGS.split()]
            self.process = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
        wait_until(lambda: self.process.poll() is not None or self._ready(), log.read_text)
        assert self.process.poll() is None, log.read_text()

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.DASHBOARD + "/api/serve/applications/", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def deploy(self, config: Path, until: str = "RUNNING") -> str:
        """Return what ``serve status`` says of the application once it is in that state."""
        self._run("deploy", str(config))
        wait_until(lambda: f"status: {until}\n" in self._run("status"), lambda: self._run("status"))
        return self._run("status")

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
        wait_until(lambda: not ray_processes(), lambda: f"still there: {ray_processes()}")


def wait_until(reached: Callable[[], bool], describe: Callable[[], str]) -> None:
    end = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < end, describe()
        time.sleep(0.25)


def wait_for_replicas(number: int) -> list[int]:
    """Their processes."""
    wait_until(lambda: len(replica_processes()) == number, lambda: f"{replica_processes()}, expected {number}")
    return replica_processes()


def replica_processes() -> list[int]:
    return [pid for pid, title in ray_processes() if title.startswith("ray::ServeReplica:osa:")]


def ray_processes() -> list[tuple[int, str]]:
    """In the network of this thread, so that another Ray on the machine does not count."""
    here = os.readlink("/proc/thread-self/ns/net")
    titles = [(pid, _title(pid, here)) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))]
    return [(pid, title) for pid, title in titles if "ray" in title.lower() or "haproxy" in title]


def _title(pid: int, network: str) -> str:
    """Empty for a process that is elsewhere, or has ended since, or is this one."""
    try:
        if pid == os.getpid() or os.readlink(f"/proc/{pid}/ns/net") != network:
            return ""
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        return ""
