"""Has a release become slower? A few ratios, measured now, against those in benchmarks/baseline.json.

Ratios, because they are the same on a slow and on a fast machine of one kind: how many times as fast as a peer in the
same rounds. Wider vector instructions favour some contenders more than others, so the file has a baseline for each
instruction set and number of threads. A ratio that has lost more than 15 % is measured twice more; only if it stays low
is the exit code 1. On a busy machine, or without a baseline for this kind of processor, nothing is decided and nothing
written: exit code 3. A wrong answer fails at once: exit code 1 as well.

    python benchmarks/check.py [--rounds 15] [--threads 2] [--baseline FILE] [--quick]
    python benchmarks/check.py --write     # on a quiet machine: the figures of now become the baseline of its kind
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contenders import models
from contenders.operators import OURS, PAPER, SGEMM, SOFTMAX, Point, open_contests, share_of_sgemm
from driver.benchmark import parse, parser_of
from driver.contest import Contest, Pace, Row
from driver.report import table, write_text

from osa_runtime.benchmarking.machine import describe_machine
from osa_runtime.benchmarking.result import Percentiles, plural

BASELINE = Path(__file__).resolve().parent / "baseline.json"
SUCCESS, FAILED, USAGE, UNDECIDABLE = 0, 1, 2, 3
TOLERATED = 0.15
ATTEMPTS = 3  # the first measurement, and two more for what seems to have become slower
COLUMNS = ("baseline", "now", "change", "attempts", "")
HELD, REGRESSED, UNDECIDED, UNKNOWN = "held", "slower", "undecided", "no baseline"
SHORT = [Point(1, 17, 64), Point(1, 197, 64), Point(8, 197, 64), Point(1, 1024, 64), Point(1, 197, 32)]
POINTS: dict[Point, tuple[str, ...]] = {
    **dict.fromkeys(SHORT, (OURS, PAPER, SOFTMAX)),
    Point(1, 4096, 64): (OURS, PAPER, SOFTMAX, SGEMM),
    Point(1, 4096, 32): (OURS, SOFTMAX, SGEMM),
}
SUBJECTS = (models.DIGITS, models.VIT_S)
QUICK = {Point(1, 17, 32): (OURS, PAPER, SOFTMAX), Point(1, 80, 32): (OURS, SGEMM)}


class Stopped(Exception):
    """The exit code, and why the check cannot go on."""


@dataclass(frozen=True)
class Comparison:
    """The best of all attempts, higher is better, and what was expected. ``doubt`` is why it decides nothing.

    Noise of other programs makes us slower in some attempts; it does not make us faster in a quiet one.
    """

    expected: float | None
    best: Percentiles
    doubt: str | None
    attempts: int = 1

    def again(self, found: Percentiles, doubt: str | None) -> "Comparison":
        better = (doubt is None, found.median) > (self.doubt is None, self.best.median)
        best, doubt = (found, doubt) if better else (self.best, self.doubt)
        return Comparison(self.expected, best, doubt, self.attempts + 1)

    @property
    def outcome(self) -> str:
        if self.doubt is not None:
            return UNDECIDED
        if self.expected is None:
            return UNKNOWN
        return HELD if self.best.median >= (1 - TOLERATED) * self.expected else REGRESSED

    def cells(self) -> list[str]:
        found, expected = self.best, self.expected
        before = [f"{expected:.2f}", f"{found.median / expected - 1:+.0%}"] if expected else ["–", "–"]
        now = f"{found.median:.2f} ({found.p10:.2f} to {found.p90:.2f})"
        return [before[0], now, before[1], str(self.attempts), self.outcome]


def compare(contests: Iterable[Contest], expected: Mapping[str, float], pace: Pace) -> dict[str, Comparison]:
    """Measure every contest; one with a ratio that does not hold, or that is in doubt, is measured again."""
    compared: dict[str, Comparison] = {}
    for contest in contests:
        print(contest.place, flush=True)
        row = contest.measure(pace)
        found = {name: Comparison(expected.get(name), r, row.contention) for name, r in ratios_of(row).items()}
        for _ in range(ATTEMPTS - 1):
            open_ones = [name for name, each in found.items() if each.outcome in (REGRESSED, UNDECIDED)]
            if not open_ones:
                break
            print(f"measuring again: {', '.join(open_ones)}", flush=True)
            row = contest.measure(pace)
            found = {name: found[name].again(r, row.contention) for name, r in ratios_of(row).items()}
        compared |= found
    return compared


def ratios_of(row: Row) -> dict[str, Percentiles]:
    """Ours against each of the others. Without one of them, or one of its variants, nothing is compared."""
    if row.missing:
        raise Stopped(FAILED, f"{row.place}: {'; '.join(f'{name}: {why}' for name, why in row.missing.items())}")
    ours = OURS if OURS in row else models.ORT
    peers = [name for name in row.blocks if name != ours]
    found = {f"{row.place}: {ours} against {peer}": row.ratio(ours, peer) for peer in peers if peer != SGEMM}
    if SGEMM in row:
        found[f"{row.place}: {ours}, share of sgemm"] = share_of_sgemm(row)
    return {name: ratio for name, ratio in found.items() if ratio is not None}


def contests(threads: int, quick: bool) -> Iterator[Contest]:
    yield from open_contests(QUICK if quick else POINTS, threads)
    for subject in models.QUICK[:1] if quick else SUBJECTS:
        with tempfile.TemporaryDirectory() as folder:
            names = (models.ORT, models.EAGER, models.SOFTMAX)
            opened = models.OpenedModel(subject, threads, Path(folder), names)
            yield replace(opened.contest(1), weigh=lambda *_: {})


def read_baselines(path: Path) -> dict[str, dict[str, Any]]:
    try:
        baselines: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["baselines"]
        for baseline in baselines.values():
            expected_ratios(baseline)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{path} cannot be read as baselines ({error!r}); restore it, or remove it first."
        raise Stopped(USAGE, reason) from error
    return baselines


def expected_ratios(baseline: Mapping[str, Any]) -> dict[str, float]:
    return {name: figures["median"] for name, figures in baseline["ratios"].items()}


def baseline_of(kind: str, baselines: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    if kind in baselines:
        return baselines[kind]
    raise Stopped(
        UNDECIDABLE,
        f"there is no baseline for {kind}, only for {' / '.join(baselines) or 'nothing'}. Record one on a quiet "
        "machine, from a release that is known to be good: python benchmarks/check.py --write",
    )


def conclude(compared: Mapping[str, Comparison], expected: Mapping[str, float]) -> tuple[int, str]:
    """The exit code, and why."""
    slower, unknown, undecided = (
        [name for name, each in compared.items() if each.outcome == outcome]
        for outcome in (REGRESSED, UNKNOWN, UNDECIDED)
    )
    if slower:
        return FAILED, f"Slower by more than {TOLERATED:.0%} in every attempt: {'; '.join(slower)}."
    # A check that no longer measures a ratio of the baseline would pass.
    misfits = [f"{name} (no baseline)" for name in unknown]
    misfits += [f"{name} (not measured)" for name in sorted(set(expected) - set(compared))]
    if misfits:
        return FAILED, f"The baseline does not fit what is measured: {'; '.join(misfits)}. Write it again with --write."
    if undecided:
        return UNDECIDABLE, f"Nothing was decided on {len(undecided)} ratios: {compared[undecided[0]].doubt}"
    return SUCCESS, "Every ratio held."


def as_baseline(compared: Mapping[str, Comparison], machine: Mapping[str, Any]) -> dict[str, Any]:
    if doubt := next((each.doubt for each in compared.values() if each.doubt), None):
        raise Stopped(UNDECIDABLE, f"nothing was written: {doubt}")
    ratios = {n: {k: round(value, 4) for k, value in c.best.as_dict().items()} for n, c in compared.items()}
    return {"machine": {key: machine[key] for key in ("cpu", "cores", "versions")}, "ratios": ratios}


def write_baselines(path: Path, baselines: Mapping[str, Any]) -> None:
    about = "Ratios of our operator and models, higher is better; written by benchmarks/check.py --write."
    content = {"about": about, "baselines": dict(sorted(baselines.items()))}
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def check(options: argparse.Namespace) -> tuple[int, str]:
    machine = describe_machine()
    kind = f"{machine['instructions']}, {plural(options.threads, 'thread')}"
    baselines = read_baselines(options.baseline)
    baseline = {"ratios": {}} if options.write else baseline_of(kind, baselines)
    expected = expected_ratios(baseline)
    compared = compare(contests(options.threads, options.quick), expected, options.pace)
    print(table(["ratio", *COLUMNS], [[name, *each.cells()] for name, each in compared.items()]))
    if options.write:
        write_baselines(options.baseline, baselines | {kind: as_baseline(compared, machine)})
        return SUCCESS, f"Wrote the baseline for {kind} to {options.baseline}."
    print(f"Compared with {kind}, measured on {baseline['machine']['cpu']}; this is {machine['cpu']}.")
    return conclude(compared, expected)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    parser.add_argument("--write", action="store_true", help="record the baseline of this kind of processor")
    try:
        code, reason = check(parse(parser, arguments))
        print(reason)
    except Stopped as stop:
        code, reason = stop.args
        print(f"error: {reason}", file=sys.stderr)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
