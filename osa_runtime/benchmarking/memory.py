"""Peak growth of resident memory through loading and running, each contender in a fresh process.

In the process that measures time, memory of other contenders and configurations would be counted, or reused.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.errors import RunError

PROBE = "osa_runtime.benchmarking.memory_probe"
PEAK_CAN_BE_RESET = Path("/proc/self/clear_refs")

Array = NDArray[Any]


@dataclass(frozen=True)
class MemoryGrowth:
    """Bytes above what the process had before it loaded the model: the peaks of loading and of each configuration."""

    load: int
    run: tuple[int, ...]


def memory_can_be_measured() -> bool:
    return PEAK_CAN_BE_RESET.exists()


def measure_memory(job: Mapping[str, Any], feeds: Sequence[Mapping[str, Array]]) -> MemoryGrowth:
    """``job`` names the contender and how to open it, as ``memory_probe`` reads it."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, arrays in enumerate(feeds):
            files.append(str(Path(folder) / f"{number}.npz"))
            np.savez(files[-1], *arrays.values())  # by number: an input may have a name that savez takes for its own
        text = json.dumps({**job, "feeds": files, "names": [list(arrays) for arrays in feeds]})
        command = [sys.executable, "-m", PROBE]
        child = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if child.returncode != 0:
        reason = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        raise RunError(
            f"The process that measures the memory of the {job['contender']} failed: {reason}. "
            "Leave it out with memory=False."
        )
    grown = json.loads(child.stdout)
    return MemoryGrowth(grown["load"], tuple(grown["run"]))
