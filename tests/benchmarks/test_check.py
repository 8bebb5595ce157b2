"""The comparison with the baseline: what fails, what is measured again, what decides nothing. No figure is real."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import check
import pytest
from check import (
    HELD,
    REGRESSED,
    UNDECIDED,
    UNKNOWN,
    Comparison,
    Reading,
    WrongAnswer,
    as_baseline,
    compare,
)

from osa_runtime.benchmarking.result import Percentiles

MACHINE = {"cpu": "P", "instructions": "AVX2", "cores": 2, "versions": {"torch": "2"}, "load_average": 0.0}


def reading(ratio: float, doubt: str | None = None) -> Reading:
    return Reading(Percentiles(ratio, 0.9 * ratio, 1.1 * ratio), doubt)


class Group:
    """Returns one reading after the other, as a contest that is repeated does."""

    def __init__(self, **readings: list[Reading]) -> None:
        self._readings: dict[str, Iterator[Reading]] = {name: iter(found) for name, found in readings.items()}
        self.calls = 0

    def __call__(self) -> Mapping[str, Reading]:
        self.calls += 1
        return {name: next(found) for name, found in self._readings.items()}


def outcomes(group: Group, **expected: float) -> dict[str, str]:
    return {c.name: c.outcome for c in compare([group], expected)}


@pytest.mark.parametrize(("ratio", "outcome"), [(4.0, HELD), (3.45, HELD), (3.35, REGRESSED), (9.0, HELD)])
def test_more_than_15_percent_is_a_regression(ratio: float, outcome: str) -> None:
    assert outcomes(Group(a=[reading(ratio)] * 3), a=4.0) == {"a": outcome}


def test_what_holds_is_measured_once() -> None:
    group = Group(a=[reading(4.0)])
    assert outcomes(group, a=4.0) == {"a": HELD}
    assert group.calls == 1


def test_a_low_ratio_is_measured_again_and_may_hold() -> None:
    group = Group(a=[reading(2.0), reading(4.0)], b=[reading(1.0), reading(1.0)])
    assert outcomes(group, a=4.0, b=1.0) == {"a": HELD, "b": HELD}
    assert group.calls == 2


def test_a_ratio_that_stays_low_fails_after_three_attempts() -> None:
    group = Group(a=[reading(2.0), reading(2.2), reading(2.1)])
    (found,) = compare([group], {"a": 4.0})
    assert (found.outcome, group.calls, found.best.ratio.median) == (REGRESSED, 3, 2.2)
    assert found.row() == ["a", "4.00", "2.20 (1.98 to 2.42)", "-45%", "3", REGRESSED]


def test_a_busy_machine_decides_nothing_however_good_the_ratio() -> None:
    busy = [reading(100.0, "others used the cores")] * 3
    group = Group(a=busy)
    assert outcomes(group, a=4.0) == {"a": UNDECIDED}
    assert group.calls == 3


def test_a_quiet_attempt_counts_and_not_a_better_busy_one() -> None:
    group = Group(a=[reading(100.0, "busy"), reading(2.0), reading(50.0, "busy")])
    assert outcomes(group, a=4.0) == {"a": REGRESSED}


def test_a_ratio_without_baseline_is_not_a_success() -> None:
    comparisons = compare([Group(a=[reading(1.0)])], {})
    assert comparisons[0].outcome == UNKNOWN
    code, reason = check.conclude(comparisons, {"ratios": {}})
    assert code == check.FAILED
    assert "a (no baseline)" in reason


def test_a_ratio_that_is_no_longer_measured_is_not_a_success() -> None:
    comparisons = [Comparison("a", 1.0, (reading(1.0),))]
    code, reason = check.conclude(comparisons, {"ratios": {"a": {}, "b": {}}})
    assert (code, "b (not measured)" in reason) == (check.FAILED, True)
    assert check.conclude(comparisons, {"ratios": {"a": {}}})[0] == check.SUCCESS


def test_the_exit_codes_tell_slower_from_undecided() -> None:
    slow, busy = Comparison("slow", 4.0, (reading(1.0),)), Comparison("busy", 4.0, (reading(4.0, "others"),))
    assert check.conclude([slow, busy], {"ratios": {"slow": {}, "busy": {}}})[0] == check.FAILED
    code, reason = check.conclude([busy], {"ratios": {"busy": {}}})
    assert code == check.UNDECIDABLE
    assert "others" in reason


def write_baseline(path: Path, kind: str = "AVX2, 1 thread") -> Path:
    entry = as_baseline([Comparison("a", None, (reading(4.0),))], MACHINE)
    path.write_text(json.dumps({"baselines": {kind: entry}}))
    return path


def run_check(monkeypatch: pytest.MonkeyPatch, group: Any, *arguments: str) -> int:
    monkeypatch.setattr(check, "release_groups", lambda *_: [group])
    monkeypatch.setattr(check, "describe_machine", lambda: MACHINE)
    return check.main(["--threads", "1", *arguments])


def test_a_written_baseline_is_held_by_the_same_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ["--baseline", str(tmp_path / "b.json")]
    assert run_check(monkeypatch, Group(a=[reading(4.0)]), *file, "--write") == check.SUCCESS
    written = check.read_baselines(tmp_path / "b.json")["AVX2, 1 thread"]
    assert written["ratios"]["a"]["median"] == 4.0
    assert (written["provisional"], written["machine"]["cpu"]) == (False, "P")
    assert run_check(monkeypatch, Group(a=[reading(4.0)]), *file) == check.SUCCESS
    assert run_check(monkeypatch, Group(a=[reading(3.0)] * 3), *file) == check.FAILED


def test_baselines_of_other_processors_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_baseline(tmp_path / "b.json", "AVX-512, 1 thread")
    assert run_check(monkeypatch, Group(a=[reading(7.0)]), "--baseline", str(path), "--write") == check.SUCCESS
    medians = {kind: entry["ratios"]["a"]["median"] for kind, entry in check.read_baselines(path).items()}
    assert medians == {"AVX-512, 1 thread": 4.0, "AVX2, 1 thread": 7.0}


@pytest.mark.parametrize("kind", ["AVX-512, 1 thread", "AVX2, 2 threads", None])
def test_another_kind_of_processor_decides_nothing_and_measures_nothing(
    kind: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "b.json"
    if kind is not None:
        write_baseline(path, kind)
    group = Group(a=[reading(4.0)])
    assert run_check(monkeypatch, group, "--baseline", str(path)) == check.UNDECIDABLE
    assert group.calls == 0
    message = capsys.readouterr().err
    assert f"no baseline for AVX2, 1 thread (P), only for {kind or 'nothing'}" in message
    assert "python benchmarks/check.py --write" in message


def test_a_baseline_of_a_busy_machine_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = ["--baseline", str(tmp_path / "b.json")]
    run_check(monkeypatch, Group(a=[reading(4.0, "busy")]), *file, "--write")
    assert "provisional" in capsys.readouterr().out
    for ratio in (4.0, 1.0):
        assert run_check(monkeypatch, Group(a=[reading(ratio)] * 3), *file) == check.UNDECIDABLE
        assert "measured on a busy machine and decides nothing" in capsys.readouterr().out


def test_the_processor_of_the_baseline_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_baseline(tmp_path / "b.json")
    path.write_text(path.read_text().replace('"cpu": "P"', '"cpu": "Q"'))
    run_check(monkeypatch, Group(a=[reading(4.0)]), "--baseline", str(path))
    assert "measured on Q; this is P" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"baselines": 1}', '{"baselines": {"k": {"ratios": {"a": 1}}}}'])
@pytest.mark.parametrize("write", [(), ("--write",)], ids=["check", "write"])
def test_a_file_that_cannot_be_read_is_wrong_usage_and_stays(
    content: str,
    write: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "b.json"
    path.write_text(content)
    assert run_check(monkeypatch, Group(), "--baseline", str(path), *write) == check.USAGE
    assert "cannot be read as baselines" in capsys.readouterr().err
    assert path.read_text() == content


def test_a_wrong_answer_fails_without_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong() -> Mapping[str, Reading]:
        raise WrongAnswer("ours has a relative error of 1.0")

    path = write_baseline(tmp_path / "b.json")
    assert run_check(monkeypatch, wrong, "--baseline", str(path)) == check.FAILED
    assert "relative error" in capsys.readouterr().err


def test_the_committed_baselines_have_the_ratios_that_are_measured(checkout: Path) -> None:
    baselines = check.read_baselines(checkout / "benchmarks" / "baseline.json")
    assert baselines
    for baseline in baselines.values():
        places = {name.partition(": ")[0] for name in baseline["ratios"]}
        assert places == {str(p) for p in check.POINTS} | {f"{subject.name}, batch 1" for subject in check.SUBJECTS}
        assert all(figures["median"] > 0 for figures in baseline["ratios"].values())
