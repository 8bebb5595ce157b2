"""Run in a process of its own by ``memory``: load one contender, run it, and print how far its memory grew.

The high-water mark is reset after the libraries are imported, so only loading and running count. Linux only: nothing
else tells a peak that can be reset.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"

Run = Callable[[dict[str, Any]], object]


def main() -> None:
    job = json.loads(sys.stdin.read())
    start = _artifact if job["contender"] == "artifact" else _eager
    open_contender = start(job)  # imports only
    before = _status("VmRSS")
    CLEAR.write_text(RESET_PEAK)
    run = open_contender()
    grown: dict[str, Any] = {"load": _status("VmHWM") - before, "run": []}
    for file, names in zip(job["feeds"], job["names"], strict=True):
        with np.load(file, allow_pickle=False) as content:
            feeds = {name: content[f"arr_{number}"] for number, name in enumerate(names)}
        CLEAR.write_text(RESET_PEAK)
        for _ in range(3):
            run(feeds)
        grown["run"].append(_status("VmHWM") - before)
    sys.stdout.write(json.dumps(grown))


def _artifact(job: dict[str, Any]) -> Callable[[], Run]:
    from osa_runtime.runtime.session import load

    if job["format"] == "onnx":
        import onnxruntime  # noqa: F401 - its own memory is not the model's
    else:
        import torch  # noqa: F401 - likewise
    return lambda: load(job["path"], job["device"], threads=job["threads"], check_hash=False).run


def _eager(job: dict[str, Any]) -> Callable[[], Run]:
    from osa_runtime.benchmarking.eager import EagerModel

    def start() -> Run:
        model = EagerModel(Path(job["path"]), job["device"], job["threads"], job["half"])
        return lambda feeds: model.run(feeds, job["order"])

    return start


def _status(field: str) -> int:
    line = next(line for line in STATUS.read_text(encoding="utf-8").splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
