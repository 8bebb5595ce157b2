"""Peak growth of resident memory through loading and running, each contender in a fresh process.

In the process that measures time, memory of other contenders and configurations would be counted, or reused. The fresh
process runs this module: it resets the high-water mark after the libraries are imported, so that only loading and
running count. Linux only: no other system reports a peak that can be reset.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.errors import RunError

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"

Array = NDArray[Any]
RunFeeds = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class MemoryGrowth:
    """Bytes above what the process had before it loaded the model: the peaks of loading and of each configuration."""

    load: int
    run: tuple[int, ...]


def memory_can_be_measured() -> bool:
    return CLEAR.exists()


def measure_memory(job: Mapping[str, Any], feeds: Sequence[Mapping[str, Array]]) -> MemoryGrowth:
    """Measure one contender; ``job`` names it and how to open it, as ``main`` reads it."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, arrays in enumerate(feeds):
            files.append(str(Path(folder) / f"{number}.npz"))
            # By number: an input may have the name of one of savez's own arguments.
            np.savez(files[-1], *arrays.values())
        text = json.dumps({**job, "feeds": files, "names": [list(arrays) for arrays in feeds]})
        command = [sys.executable, "-m", "osa_runtime.benchmarking.memory"]
        child = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if child.returncode != 0:
        reason = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        raise RunError(
            f"The process that measures the memory of the {job['contender']} failed: {reason}. "
            "Leave it out with memory=False."
        )
    grown = json.loads(child.stdout)
    return MemoryGrowth(grown["load"], tuple(grown["run"]))


def main() -> None:
    job = json.loads(sys.stdin.read())
    start = _artifact if job["contender"] == "artifact" else _eager
    open_contender = start(job)  # imports only
    before = status_bytes("VmRSS")
    CLEAR.write_text(RESET_PEAK)
    run = open_contender()
    grown: dict[str, Any] = {"load": status_bytes("VmHWM") - before, "run": []}
    for file, names in zip(job["feeds"], job["names"], strict=True):
        with np.load(file, allow_pickle=False) as content:
            feeds = {name: content[f"arr_{number}"] for number, name in enumerate(names)}
        CLEAR.write_text(RESET_PEAK)
        for _ in range(3):
            run(feeds)
        grown["run"].append(status_bytes("VmHWM") - before)
    sys.stdout.write(json.dumps(grown))


def _artifact(job: dict[str, Any]) -> Callable[[], RunFeeds]:
    from osa_runtime.runtime.session import load

    if job["format"] == "onnx":
        import onnxruntime  # noqa: F401 - its own memory is not the model's
    else:
        import torch  # noqa: F401 - likewise
    return lambda: load(job["path"], job["device"], threads=job["threads"], check_hash=False).run


def _eager(job: dict[str, Any]) -> Callable[[], RunFeeds]:
    from osa_runtime.benchmarking.eager import EagerModel

    def start() -> RunFeeds:
        model = EagerModel(Path(job["path"]), job["device"], job["threads"], job["half"])
        return lambda feeds: model.run(feeds, job["order"])

    return start


def status_bytes(field: str) -> int:
    """A size of this process, such as VmRSS, or VmHWM, the peak since ``RESET_PEAK`` was written to ``CLEAR``."""
    line = next(line for line in STATUS.read_text(encoding="utf-8").splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
