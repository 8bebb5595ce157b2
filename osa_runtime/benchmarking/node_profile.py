"""The time of an ONNX graph by operator and by node, from ONNX Runtime's own trace.

A Loop or an If contains its inner nodes, which are in the trace, too. So only the own time of each node counts,
without that of the nodes inside it, and the shares add up to the whole.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from osa_runtime.atomic import atomic_file
from osa_runtime.benchmarking.configurations import BenchmarkSettings
from osa_runtime.errors import RunError
from osa_runtime.runtime.session import load

KERNEL = "_kernel_time"
RUN = "model_run"
RUNS, WARM_UP = 20, 3
CONTROL_FLOW = ("If", "Loop", "Scan")

Array = NDArray[Any]
Event = dict[str, Any]


@dataclass(frozen=True)
class ProfileRow:
    """``name`` is an operator's or a node's; ``share`` is that of the whole run."""

    name: str
    operator: str
    ms_per_run: float
    share: float
    calls_per_run: float


@dataclass(frozen=True)
class NodeProfile:
    runs: int
    operators: tuple[ProfileRow, ...]
    nodes: tuple[ProfileRow, ...]


def profile_artifact(settings: BenchmarkSettings, feeds: Mapping[str, Array], trace: Path) -> NodeProfile:
    """Profile runs apart from the timed ones, since writing the trace slows every node down.

    ONNX Runtime's own trace, which browsers and Perfetto draw, is written to ``trace``.
    """
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "trace"
        with load(settings.artifact, settings.device, threads=settings.threads, profile=prefix) as session:
            for _ in range(WARM_UP + RUNS):
                session.run(feeds)
            written = session.end_profile()
        profile = read_profile(written, RUNS, WARM_UP)
        with atomic_file(trace) as temporary:
            shutil.copyfile(written, temporary)
    return profile


def read_profile(trace: Path, runs: int, warm_up: int) -> NodeProfile:
    """Sum up a trace of ``warm_up`` runs, which do not count, and ``runs`` more."""
    events = json.loads(trace.read_text(encoding="utf-8"))
    found = sorted((e for e in events if e.get("name") == RUN), key=lambda e: int(e["ts"]))
    if len(found) != warm_up + runs:
        raise RunError(
            f"ONNX Runtime's trace has {len(found)} runs of {warm_up + runs}: it holds a million events at most. "
            "Profile with a smaller model or fewer calls."
        )
    start = found[warm_up]["ts"]
    kernels = [e for e in events if str(e.get("name")).endswith(KERNEL) and e["ts"] >= start]
    own = list(zip(kernels, own_times(kernels), strict=True))
    return NodeProfile(
        runs,
        _summed(own, runs, lambda event: event["args"]["op_name"]),
        _summed(own, runs, lambda event: str(event["name"]).removesuffix(KERNEL)),
    )


def own_times(events: Iterable[Event]) -> list[float]:
    """The microseconds of each event less those of the events inside it, on the same thread."""
    listed = list(events)
    own = [float(event["dur"]) for event in listed]
    around: dict[Any, list[int]] = {}
    # An outer event starts no later than its inner ones and lasts longer.
    for index in sorted(range(len(listed)), key=lambda i: (listed[i]["ts"], -listed[i]["dur"])):
        event = listed[index]
        stack = around.setdefault(event.get("tid"), [])
        while stack and _end(listed[stack[-1]]) <= event["ts"]:
            stack.pop()
        if stack:
            own[stack[-1]] -= event["dur"]
        # Times are whole microseconds, so neighbours may seem to overlap; only these can contain others.
        if event["args"]["op_name"] in CONTROL_FLOW:
            stack.append(index)
    return [max(0.0, time) for time in own]


def _end(event: Mapping[str, Any]) -> float:
    return float(event["ts"]) + float(event["dur"])


def _summed(own: list[tuple[Event, float]], runs: int, key: Callable[[Event], str]) -> tuple[ProfileRow, ...]:
    times: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    operators: dict[str, str] = {}
    for event, time in own:
        name = key(event)
        times[name] += time  # type: ignore[assignment]  # a Counter adds up floats as well
        calls[name] += 1
        operators[name] = event["args"]["op_name"]
    whole = sum(times.values()) or 1
    return tuple(
        ProfileRow(name, operators[name], time / 1e3 / runs, time / whole, calls[name] / runs)
        for name, time in times.most_common()
    )
