"""Timed calls in rotating blocks: a pause, warm-up calls, several timed calls, then the next contender.

The thread pools of ONNX Runtime and torch spin for a while after each call and take each other's cores, so contenders
that take turns call by call slow each other down. After a pause the other pool sleeps.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from osa_runtime.artifact import MANIFEST_FILE, sha256
from osa_runtime.errors import InputError, MissingDependencyError
from osa_runtime.runtime.session import Session

if TYPE_CHECKING:
    from osa_runtime.benchmarking.eager import EagerModel


TimedCall = Callable[[], object]
Blocks = list[list[int]]
Clock = Callable[[], int]


@dataclass(frozen=True)
class Schedule:
    """Each contender has ``rounds`` blocks, which together hold ``iterations`` calls or more and last ``seconds``."""

    warm_up: int = 3
    iterations: int = 30
    seconds: float = 1.0
    rounds: int = 10
    pause: float = 0.05

    def __post_init__(self) -> None:
        for name, least in (("warm_up", 0), ("iterations", 1), ("rounds", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}, expected a whole number of at least {least}.")
        for name in ("seconds", "pause"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name)}, expected a finite number of seconds, 0 or more.")

    @property
    def blocks(self) -> int:
        """The number of blocks, at most the number of calls, so that few calls stay few."""
        return min(self.rounds, self.iterations)


def rotate(
    contenders: Mapping[str, TimedCall],
    schedule: Schedule | Mapping[str, Schedule],
    *,
    after_round: Callable[[], None] = lambda: None,
    clock: Clock = time.perf_counter_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Blocks]:
    """Nanoseconds of each timed call, by contender and block. Every round starts with another contender.

    Contenders whose calls last very differently have a schedule each, with the same number of blocks.
    """
    schedules = dict.fromkeys(contenders, schedule) if isinstance(schedule, Schedule) else schedule
    blocks: dict[str, Blocks] = {name: [] for name in contenders}
    names = list(contenders)
    (rounds,) = {schedules[name].blocks for name in names}
    for turn in range(rounds):
        for name in in_turn(names, turn):
            sleep(schedules[name].pause)
            blocks[name].append(_timed_block(contenders[name], schedules[name], clock))
        after_round()
    return blocks


def in_turn(names: list[str], turn: int) -> list[str]:
    """All names, another one first in every turn."""
    first = turn % len(names)
    return names[first:] + names[:first]


def _timed_block(call: TimedCall, schedule: Schedule, clock: Clock) -> list[int]:
    for _ in range(schedule.warm_up):
        call()
    calls = math.ceil(schedule.iterations / schedule.blocks)
    budget = schedule.seconds * 1e9 / schedule.blocks
    times: list[int] = []
    spent = 0
    while len(times) < calls or spent < budget:
        start = clock()
        call()
        times.append(clock() - start)
        # A clock too coarse to see the call must not keep the block from ending.
        spent += max(1, times[-1])
    return times


T = TypeVar("T")
LOADS, PATIENCE = 3, 6.0


def timed_opening(start: Callable[[], T], loads: int = LOADS) -> tuple[T, float]:
    """Return the result of ``start``, and the median of its seconds.

    The first time, which imports libraries, does not count. More than three loads take no more than some seconds.
    """
    opened, seconds = start(), list[float]()
    while len(seconds) < loads and (len(seconds) < LOADS or sum(seconds) < PATIENCE):
        begin = time.perf_counter()
        opened = start()
        seconds.append(time.perf_counter() - begin)
    return opened, statistics.median(seconds)


def eager_class() -> type[EagerModel]:
    try:
        from osa_runtime.benchmarking.eager import EagerModel
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"The comparison runs the checkpoint in eager PyTorch and needs {error.name}, which is not installed; "
            'pip install "osa-runtime[export]", or leave the checkpoint out.'
        ) from error
    return EagerModel


def describe_session(session: Session, path: Path) -> dict[str, Any]:
    """The artifact, and the device and provider on which it actually runs."""
    placement = session.placement
    return {
        "path": str(path),
        "format": session.format,
        "dtype": session.manifest.dtype if session.manifest else None,
        "sha256": sha256(session.path),
        "bytes": _size_on_disk(session),
        "placement": {
            "requested": placement.requested,
            "device": placement.device,
            "provider": placement.provider,
            "cpu_nodes": list(placement.cpu_nodes) if placement.cpu_nodes is not None else None,
        },
    }


def _size_on_disk(session: Session) -> int:
    """The size of the model, its external weights and the manifest."""
    folder = session.path.parent
    if session.manifest is not None:
        files = [folder / name for name in (*session.manifest.files, MANIFEST_FILE)]
    else:
        files = [session.path, session.path.with_name(f"{session.path.name}.data")]
    return sum(file.stat().st_size for file in files if file.is_file())
