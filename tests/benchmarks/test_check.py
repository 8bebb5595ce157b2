"""The comparison with the baseline: what fails, what is measured again, what decides nothing. No figure is real."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import check
import pytest
from check import HELD, REGRESSED, UNDECIDED, UNKNOWN
from contenders.models import ORT
from contenders.operators import OURS, SGEMM, Point
from driver.contest import Pace, Row

from benchmark_rows import FACTS, made_up

MACHINE = FACTS["machine"]
RATIO = "a: ours against peer"
BUSY = {"busy": 99.0}


class Named(NamedTuple):
    name: str

    def __str__(self) -> str:
        return self.name


class Attempts:
    """A contest that finds one ratio after the other."""

    def __init__(self, *found: float | tuple[float, dict[str, Any]], place: str = "a", ours: str = OURS) -> None:
        self.place, self._found, self._ours, self.calls = Named(place), iter(found), ours, 0

    def measure(self, _: Pace) -> Row:
        self.calls += 1
        found = next(self._found)
        ratio, more = found if isinstance(found, tuple) else (found, {})
        return made_up({self._ours: 1.0, "peer": ratio}, self.place, **more)


def compare(attempts: Attempts, expected: float | None = 4.0) -> check.Comparison:
    found = check.compare([attempts], {} if expected is None else {RATIO: expected}, Pace())  # type: ignore[list-item]
    assert list(found) == [RATIO]
    return found[RATIO]


@pytest.mark.parametrize(("ratio", "outcome"), [(4.0, HELD), (3.45, HELD), (3.35, REGRESSED), (9.0, HELD)])
def test_more_than_15_percent_is_a_regression(ratio: float, outcome: str) -> None:
    assert compare(Attempts(ratio, ratio, ratio)).outcome == outcome


def test_what_holds_is_measured_once() -> None:
    attempts = Attempts(4.0)
    assert compare(attempts).outcome == HELD
    assert attempts.calls == 1


def test_a_low_ratio_is_measured_again_and_may_hold() -> None:
    attempts = Attempts(2.0, 4.0)
    assert compare(attempts).outcome == HELD
    assert attempts.calls == 2


def test_a_ratio_that_stays_low_fails_after_three_attempts() -> None:
    found = compare(Attempts(2.0, 2.2, 2.1))
    assert (found.outcome, found.attempts, found.best.median) == (REGRESSED, 3, pytest.approx(2.2))
    assert found.cells() == ["4.00", "2.20 (2.20 to 2.20)", "-45%", "3", REGRESSED]


def test_a_busy_machine_decides_nothing_however_good_the_ratio() -> None:
    attempts = Attempts(*[(100.0, BUSY)] * 3)
    assert compare(attempts).outcome == UNDECIDED
    assert attempts.calls == 3


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1)])
def test_a_quiet_attempt_counts_and_not_a_better_busy_one(order: tuple[int, ...]) -> None:
    readings = [(100.0, BUSY), 2.0, (50.0, BUSY)]
    found = compare(Attempts(*[readings[number] for number in order]))
    assert (found.outcome, found.best.median) == (REGRESSED, pytest.approx(2.0))


def test_a_ratio_without_baseline_is_not_a_success() -> None:
    found = compare(Attempts(1.0), expected=None)
    assert found.outcome == UNKNOWN
    code, reason = check.conclude({RATIO: found}, {})
    assert (code, f"{RATIO} (no baseline)" in reason) == (check.FAILED, True)


def test_a_ratio_that_is_no_longer_measured_is_not_a_success() -> None:
    compared = {RATIO: compare(Attempts(4.0))}
    code, reason = check.conclude(compared, {RATIO: 4.0, "b": 1.0})
    assert (code, "b (not measured)" in reason) == (check.FAILED, True)
    assert check.conclude(compared, {RATIO: 4.0})[0] == check.SUCCESS


def test_the_exit_codes_tell_slower_from_undecided() -> None:
    slow, busy = compare(Attempts(1.0, 1.0, 1.0)), compare(Attempts(*[(4.0, BUSY)] * 3))
    expected = {"slow": 4.0, "busy": 4.0}
    assert check.conclude({"slow": slow, "busy": busy}, expected)[0] == check.FAILED
    code, reason = check.conclude({"slow": busy, "busy": busy}, expected)
    assert code == check.UNDECIDABLE
    assert "other processes used 99.0" in reason


def test_ours_is_compared_with_every_other() -> None:
    row = made_up({ORT: 1.0, "eager": 3.0, "softmax": 0.5}, Named("m"))
    found = {name: ratio.median for name, ratio in check.ratios_of(row).items()}
    assert found == {f"m: {ORT} against eager": pytest.approx(3.0), f"m: {ORT} against softmax": pytest.approx(0.5)}
    long = made_up({OURS: 1.0, SGEMM: 2.0}, Point(1, 4096, 64))
    assert list(check.ratios_of(long)) == [f"{long.place}: {OURS}, share of sgemm"]


def run_check(monkeypatch: pytest.MonkeyPatch, attempts: Attempts, *arguments: str) -> int:
    def contests(*_: object) -> Iterator[Attempts]:
        yield attempts

    monkeypatch.setattr(check, "contests", contests)
    monkeypatch.setattr(check, "describe_machine", lambda: MACHINE)
    return check.main(["--threads", "1", *arguments])


def written(path: Path, kind: str = "AVX2, 1 thread") -> Path:
    entry = check.as_baseline({RATIO: compare(Attempts(4.0), None)}, MACHINE)
    check.write_baselines(path, {kind: entry})
    return path


def test_a_written_baseline_is_held_by_the_same_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ["--baseline", str(tmp_path / "b.json")]
    assert run_check(monkeypatch, Attempts(4.0), *file, "--write") == check.SUCCESS
    baseline = check.read_baselines(tmp_path / "b.json")["AVX2, 1 thread"]
    assert (baseline["ratios"][RATIO]["median"], baseline["machine"]["cpu"]) == (4.0, "P")
    assert run_check(monkeypatch, Attempts(3.45), *file) == check.SUCCESS
    assert run_check(monkeypatch, Attempts(3.35, 3.35, 3.35), *file) == check.FAILED


def test_baselines_of_other_processors_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "b.json", "AVX-512, 1 thread")
    assert run_check(monkeypatch, Attempts(7.0), "--baseline", str(path), "--write") == check.SUCCESS
    medians = {kind: entry["ratios"][RATIO]["median"] for kind, entry in check.read_baselines(path).items()}
    assert medians == {"AVX-512, 1 thread": 4.0, "AVX2, 1 thread": 7.0}


@pytest.mark.parametrize("kind", ["AVX-512, 1 thread", "AVX2, 2 threads", None])
def test_another_kind_of_processor_decides_nothing_and_measures_nothing(
    kind: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "b.json"
    if kind is not None:
        written(path, kind)
    attempts = Attempts(4.0)
    assert run_check(monkeypatch, attempts, "--baseline", str(path)) == check.UNDECIDABLE == 3
    assert attempts.calls == 0
    message = capsys.readouterr().err
    assert f"no baseline for AVX2, 1 thread, only for {kind or 'nothing'}" in message
    assert "python benchmarks/check.py --write" in message


def test_a_busy_machine_writes_no_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "b.json")
    before = path.read_text()
    attempts = Attempts(*[(9.0, BUSY)] * 3)
    assert run_check(monkeypatch, attempts, "--baseline", str(path), "--write") == check.UNDECIDABLE
    assert "nothing was written: other processes used" in capsys.readouterr().err
    assert path.read_text() == before


def test_a_baseline_waits_for_a_quiet_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ["--baseline", str(tmp_path / "b.json")]
    assert run_check(monkeypatch, Attempts((9.0, BUSY), 4.0), *file, "--write") == check.SUCCESS
    assert check.read_baselines(tmp_path / "b.json")["AVX2, 1 thread"]["ratios"][RATIO]["median"] == 4.0


def test_the_processor_of_the_baseline_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "b.json")
    path.write_text(path.read_text().replace('"cpu": "P"', '"cpu": "Q"'))
    run_check(monkeypatch, Attempts(4.0), "--baseline", str(path))
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
    assert run_check(monkeypatch, Attempts(), "--baseline", str(path), *write) == check.USAGE
    assert "cannot be read as baselines" in capsys.readouterr().err
    assert path.read_text() == content


def test_a_wrong_answer_fails_without_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "b.json")
    wrong = Attempts((4.0, {"missing": {"softmax": "a wrong answer: its relative error is nan"}}))
    assert run_check(monkeypatch, wrong, "--baseline", str(path)) == check.FAILED
    assert "a: softmax: a wrong answer: its relative error is nan" in capsys.readouterr().err


def test_the_committed_baselines_have_the_ratios_that_are_measured(checkout: Path) -> None:
    baselines = check.read_baselines(checkout / "benchmarks" / "baseline.json")
    assert baselines
    operators = {
        f"{place}: {OURS}{', share of ' if peer == SGEMM else ' against '}{peer}"
        for place, names in check.POINTS.items()
        for peer in names
        if peer != OURS
    }
    models = {f"{subject.name}, batch 1: {ORT} against " for subject in check.SUBJECTS}
    for baseline in baselines.values():
        names = set(baseline["ratios"])
        assert {name for name in names if ORT not in name.partition(": ")[2].partition(" against")[0]} == operators
        assert {name.partition("against ")[0] + "against " for name in names - operators} == models
        assert all(figures["median"] > 0 for figures in baseline["ratios"].values())
