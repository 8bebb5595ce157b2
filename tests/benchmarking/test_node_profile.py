"""Traces made by hand: own times, warm-up, and traces that are not whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from osa_runtime import InputError, RunError, load
from osa_runtime.benchmarking.node_profile import own_times, read_profile
from small_models import feeds


def kernel(name: str, operator: str, start: int, time: int, thread: int = 1) -> dict[str, Any]:
    args = {"op_name": operator}
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": start, "dur": time, "tid": thread, "args": args}


def run(start: int, time: int) -> dict[str, Any]:
    return {"cat": "Session", "name": "model_run", "ts": start, "dur": time, "tid": 1, "args": {}}


def test_what_is_inside_a_loop_is_not_counted_twice() -> None:
    events = [
        kernel("inner", "MatMul", 12, 30),
        kernel("nested", "If", 50, 20),
        kernel("deep", "Add", 55, 5),
        kernel("outer", "Loop", 10, 100),
        kernel("after", "MatMul", 110, 7),
        kernel("elsewhere", "MatMul", 20, 9, thread=2),
    ]
    assert own_times(events) == [30, 15, 5, 50, 7, 9]


def test_neighbours_that_seem_to_overlap_keep_their_time() -> None:
    assert own_times([kernel("a", "Add", 10, 3), kernel("b", "Mul", 12, 2)]) == [3, 2]


def test_shares_and_calls_are_per_run_without_the_warm_up(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = [run(0, 1000), kernel("x", "MatMul", 1, 900)]
    for start in (2000, 3000):
        events += [run(start, 500), kernel("x", "MatMul", start + 1, 300), kernel("y", "Add", start + 400, 50)]
        events += [kernel("z", "MatMul", start + 460, 50)]
    (tmp_path / "trace.json").write_text(json.dumps(events))
    profile = read_profile(tmp_path / "trace.json", runs=2, warm_up=1)
    first, second = profile.operators
    assert (first.name, first.ms_per_run, first.share, first.calls_per_run) == ("MatMul", 0.35, 0.875, 2)
    assert (second.name, second.share) == ("Add", 0.125)
    assert [(row.name, row.operator, row.ms_per_run) for row in profile.nodes] == [
        ("x", "MatMul", 0.3),
        ("y", "Add", 0.05),
        ("z", "MatMul", 0.05),
    ]
    with pytest.raises(RunError, match="trace has 3 runs of 5"):
        read_profile(tmp_path / "trace.json", runs=4, warm_up=1)


def test_a_real_trace_adds_up(exported, tmp_path: Path) -> None:
    with load(exported("encoder", "onnx"), threads=1, profile=tmp_path / "trace") as session:
        for _ in range(4):
            session.run(feeds("encoder"))
        trace = session.end_profile()
        with pytest.raises(InputError, match="was loaded without profile="):
            session.end_profile()
    assert trace.parent == tmp_path
    profile = read_profile(trace, runs=3, warm_up=1)
    for rows in (profile.operators, profile.nodes):
        assert sum(row.share for row in rows) == pytest.approx(1)
        assert [row.share for row in rows] == sorted((row.share for row in rows), reverse=True)
    assert "MatMul" in [row.name for row in profile.operators]


@pytest.mark.parametrize("kind", ["torchscript", "pt2"])
def test_torch_formats_have_no_trace(exported, tmp_path: Path, kind: str) -> None:
    with pytest.raises(InputError, match="Only ONNX models can be profiled"):
        load(exported("vit", kind), profile=tmp_path / "trace")
    with load(exported("vit", "onnx")) as session, pytest.raises(InputError, match="without profile="):
        session.end_profile()
