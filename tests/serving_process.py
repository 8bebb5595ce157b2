"""A server in a process of its own, as users start it, on ports that are free."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any


class ServerProcess:
    """``events`` are the lines of its log."""

    def __init__(
        self, *arguments: str | Path, environment: dict[str, str] | None = None, ports: tuple[str, str] = ("0", "0")
    ) -> None:
        command = [sys.executable, "-m", "osa_runtime.cli", "serve", *map(str, arguments)]
        command += ["--http-port", ports[0], "--grpc-port", ports[1], "--threads", "1"]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {}),
        )
        self.events: list[dict[str, Any]] = []
        self.noise: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        ready = self.wait_for("ready")
        self.http, self.grpc = ready["http"], ready.get("grpc", "")
        self.url = f"http://{self.http}"

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                try:
                    self.events.append(json.loads(line))
                except ValueError:
                    self.noise.append(line)
                self._changed.notify_all()
        with self._changed:
            self.events.append({"event": "end of log"})
            self._changed.notify_all()

    def count(self, event: str) -> int:
        return sum(entry["event"] == event for entry in self.events)

    def wait_for(self, event: str, seconds: float = 60, after: int = 0, **fields: Any) -> dict[str, Any]:
        """The first event of this name with these fields, beyond some; an assertion when the server ends without."""

        def found() -> dict[str, Any] | None:
            wanted = {"event": event} | fields
            return next(itertools.islice((e for e in self.events if wanted.items() <= e.items()), after, None), None)

        def settled() -> bool:
            return bool(found() or (self.events and self.events[-1]["event"] == "end of log"))

        with self._changed:
            self._changed.wait_for(settled, seconds)
            result = found()
        assert result is not None, f"no {event!r} in {self.events}\n{''.join(self.noise)}"
        return result

    def stop(self) -> int:
        """The exit code after SIGTERM."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self._reader.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
