"""The few ratios that a release is judged by, and what counts as a regression against those that were committed.

Each comes from one contest, which is cheap enough to be repeated twice.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from osa_runtime.benchmarking.machine import contention_doubt
from osa_runtime.benchmarking.result import Percentiles
from speed import models
from speed.attention_contenders import PACKED, PAPER, SEPARATE, SGEMM, SOFTMAX, Operators
from speed.attention_inputs import Point
from speed.attention_targets import share_of_sgemm
from speed.contest import Contest, Pace
from speed.model_contenders import EAGER, ORT, OpenedModel
from speed.model_contenders import SOFTMAX as SOFTMAX_MODEL

TOLERATED = 0.15
ATTEMPTS = 3  # the first measurement, and two more for what seems to have become slower
HELD, REGRESSED, UNDECIDED, UNKNOWN = "held", "slower", "undecided", "no baseline"
POINTS: dict[Point, tuple[str, ...]] = {
    Point(1, 17, 64): (PAPER, SOFTMAX),
    Point(1, 197, 64): (PAPER, SOFTMAX),
    Point(8, 197, 64): (PAPER, SOFTMAX),
    Point(1, 1024, 64): (PAPER, SOFTMAX),
    Point(1, 4096, 64): (PAPER, SOFTMAX, SGEMM),
    Point(1, 197, 32): (PAPER, SOFTMAX),
    Point(1, 4096, 32): (SOFTMAX, SGEMM),
}
QUICK_POINTS: dict[Point, tuple[str, ...]] = {Point(1, 17, 32): (PAPER, SOFTMAX), Point(1, 80, 32): (SGEMM,)}
SUBJECTS = (models.DIGITS, models.VIT_S)
PEERS = (EAGER, SOFTMAX_MODEL)


class WrongAnswer(Exception):
    """The speed of a wrong answer is not compared."""


@dataclass(frozen=True)
class Reading:
    """A ratio, higher is better. ``doubt`` has the reason why it decides nothing, such as a busy machine."""

    ratio: Percentiles
    doubt: str | None = None


# One contest, which has one or more ratios by name.
Group = Callable[[], Mapping[str, Reading]]


@dataclass(frozen=True)
class Comparison:
    name: str
    expected: float | None
    readings: tuple[Reading, ...]

    @property
    def best(self) -> Reading:
        """Noise of other programs makes us slower in some attempts; it does not make us faster in a quiet one."""
        quiet = [reading for reading in self.readings if reading.doubt is None]
        return max(quiet or self.readings, key=lambda reading: reading.ratio.median)

    @property
    def outcome(self) -> str:
        if self.expected is None:
            return UNKNOWN
        if self.best.doubt is not None:
            return UNDECIDED
        return HELD if self.best.ratio.median >= (1 - TOLERATED) * self.expected else REGRESSED

    def row(self) -> list[str]:
        found, expected = self.best.ratio, self.expected
        known = ["–" if expected is None else f"{expected:.2f}"]
        change = f"{found.median / expected - 1:+.0%}" if expected else "–"
        now = f"{found.median:.2f} ({found.p10:.2f} to {found.p90:.2f})"
        return [self.name, *known, now, change, str(len(self.readings)), self.outcome]


def compare(groups: Iterable[Group], expected: Mapping[str, float], attempts: int = ATTEMPTS) -> list[Comparison]:
    """Measure every group; one with a ratio that does not hold is measured again."""
    found: list[Comparison] = []
    for group in groups:
        comparisons = [Comparison(name, expected.get(name), (r,)) for name, r in group().items()]
        for _ in range(attempts - 1):
            open_ones = [c.name for c in comparisons if c.outcome in (REGRESSED, UNDECIDED)]
            if not open_ones:
                break
            print(f"measuring again: {', '.join(open_ones)}", flush=True)
            again = group()
            comparisons = [Comparison(c.name, c.expected, (*c.readings, again[c.name])) for c in comparisons]
        found += comparisons
    return found


def as_baseline(comparisons: Sequence[Comparison], machine: Mapping[str, Any], threads: int) -> dict[str, Any]:
    ratios = {c.name: {key: round(value, 4) for key, value in c.best.ratio.as_dict().items()} for c in comparisons}
    return {
        "about": "Ratios of our operator and models, higher is better; written by benchmarks/check.py --write.",
        "provisional": any(c.best.doubt is not None for c in comparisons),
        "threads": threads,
        "machine": {key: machine[key] for key in ("cpu", "cores", "versions")},
        "ratios": ratios,
    }


def release_groups(pace: Pace, threads: int, folder: Path, quick: bool = False) -> list[Group]:
    """Export and open everything; the groups measure when they are called."""
    points = QUICK_POINTS if quick else POINTS
    groups: list[Group] = []
    for width in dict.fromkeys(point.width for point in points):
        print(f"exporting the operator, d = {width}", flush=True)
        operators = Operators(width, threads, folder)
        groups += [partial(_attention, operators, *item, pace) for item in points.items() if item[0].width == width]
    for subject in models.QUICK[:1] if quick else SUBJECTS:
        opened = OpenedModel(subject, threads, folder / subject.name, (ORT, *PEERS))
        groups.append(partial(_model, opened, pace))
    return groups


def _attention(operators: Operators, point: Point, peers: tuple[str, ...], pace: Pace) -> dict[str, Reading]:
    print(f"operator: {point}", flush=True)
    row = operators.measure(point, (PACKED, SEPARATE, *peers), pace)
    if row.wrong:
        raise WrongAnswer(f"{point}: the relative errors against float64 are {dict(row.wrong)}.")
    found = {}
    for ours in (PACKED, SEPARATE):
        for peer in (peer for peer in peers if peer != SGEMM):
            found[f"{point}: {ours} against {peer}"] = row.contest.ratio(ours, peer)
        found[f"{point}: {ours}, share of sgemm"] = share_of_sgemm(row, ours)
    return _readings(found, row.contest)


def _model(opened: OpenedModel, pace: Pace) -> dict[str, Reading]:
    row, name = opened.meet(1, pace), opened.subject.name
    absent = [contender for contender in (ORT, *PEERS) if contender not in row.contest]
    if absent:
        raise WrongAnswer(f"{name}: there is no time of {', '.join(absent)}. {opened.missing}")
    found = {f"{name}, batch 1: {ORT} against {peer}": row.contest.ratio(ORT, peer) for peer in PEERS}
    return _readings(found, row.contest)


def _readings(ratios: Mapping[str, Percentiles | None], contest: Contest) -> dict[str, Reading]:
    doubt = contention_doubt(contest.busy, contest.threads)
    return {name: Reading(ratio, doubt) for name, ratio in ratios.items() if ratio is not None}
