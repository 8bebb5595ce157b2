"""Whether other processes used the cores, from tables of the kernel made by hand."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from osa_runtime.benchmarking import machine
from osa_runtime.benchmarking.machine import ContentionWatch, contention_doubt


def write_stat(path: Path, seconds: float) -> None:
    """Each of two cores busy for that long, in six kinds of work, and idle for much longer."""
    ticks = int(seconds * os.sysconf("SC_CLK_TCK") / 6)
    row = f"{ticks} {ticks} {ticks} 99999 99999 {ticks} {ticks} {ticks} 7 7"
    path.write_text(f"cpu  0 0\ncpu0 {row}\ncpu1 {row}\ncpu7 {row}\nintr 5\n")


def test_others_are_what_is_left_of_busy_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"wall": 0.0, "own": 0.0}
    monkeypatch.setattr(machine, "STAT", tmp_path / "stat")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setattr(time, "perf_counter", lambda: now["wall"])
    monkeypatch.setattr(machine, "_own_seconds", lambda: now["own"])
    write_stat(tmp_path / "stat", 0)
    watch = ContentionWatch()
    write_stat(tmp_path / "stat", 6)  # two cores busy for 6 seconds each: 12 in all
    now.update(wall=10.0, own=2.0)
    assert watch.busy_cores() == pytest.approx(1.0)
    now.update(own=20.0)
    assert watch.busy_cores() == 0


def test_nothing_is_said_where_the_system_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "STAT", tmp_path / "none")
    assert ContentionWatch().busy_cores() is None
    assert contention_doubt(None, threads=2) is None


@pytest.mark.parametrize(
    ("busy", "threads", "doubted"),
    [(0.3, 4, False), (0.5, 4, True), (2.3, 2, False), (2.5, 2, True), (0.5, 9, True)],
    ids=["quiet", "busy", "on idle cores", "on more than the idle cores", "more threads than cores"],
)
def test_cores_beyond_the_threads_may_be_used(
    monkeypatch: pytest.MonkeyPatch, busy: float, threads: int, doubted: bool
) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 4)
    assert bool(contention_doubt(busy, threads)) is doubted


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu avx2 avx512f", "AVX-512"),
        ("fpu avx avx2", "AVX2"),
        ("fpu", "some-architecture"),
        (None, "some-architecture"),
    ],
)
def test_the_vector_instructions_are_those_of_the_first_core(
    flags: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(machine.platform, "machine", lambda: "some-architecture")
    monkeypatch.setattr(machine.platform, "processor", lambda: "")
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nmodel name\t: P 7\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
    described = machine.describe_machine()
    assert described["instructions"] == expected
    assert described["cpu"] == ("P 7" if flags is not None else "some-architecture")
