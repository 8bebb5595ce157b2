"""Has a release become slower? A few ratios, measured now, against those in benchmarks/baseline.json.

Ratios, because they are the same on a slow and on a fast machine of one kind: how many times as fast as a peer in the
same rounds. Wider vector instructions favour some contenders more than others, so the file has a baseline for each
instruction set and number of threads. A ratio that has lost more than 15 % is measured twice more; only if it stays low
is the exit code 1. On a busy machine, against a baseline from one, or without a baseline for this kind of processor,
nothing is decided: exit code 3. A wrong answer fails at once: exit code 1 as well.

    python benchmarks/check.py [--rounds 15] [--threads 2] [--baseline FILE] [--quick]
    python benchmarks/check.py --write     # on a quiet machine: the figures of now become the baseline of its kind
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from speed.attention_contenders import PACKED, PAPER, SEPARATE, SGEMM, SOFTMAX, Operators, Point, share_of_sgemm
from speed.contest import Contest, Pace
from speed.model_contenders import DIGITS, EAGER, ORT, QUICK, VIT_S, OpenedModel
from speed.model_contenders import SOFTMAX as SOFTMAX_MODEL
from speed.report import parse, parser_of, table, write_text

from osa_runtime.benchmarking.machine import contention_doubt, describe_machine
from osa_runtime.benchmarking.result import Percentiles, plural

BASELINE = Path(__file__).resolve().parent / "baseline.json"
SUCCESS, FAILED, USAGE, UNDECIDABLE = 0, 1, 2, 3
TOLERATED = 0.15
ATTEMPTS = 3  # the first measurement, and two more for what seems to have become slower
HELD, REGRESSED, UNDECIDED, UNKNOWN = "held", "slower", "undecided", "no baseline"
SHORT = [Point(1, 17, 64), Point(1, 197, 64), Point(8, 197, 64), Point(1, 1024, 64), Point(1, 197, 32)]
POINTS: dict[Point, tuple[str, ...]] = {
    **dict.fromkeys(SHORT, (PAPER, SOFTMAX)),
    Point(1, 4096, 64): (PAPER, SOFTMAX, SGEMM),
    Point(1, 4096, 32): (SOFTMAX, SGEMM),
}
QUICK_POINTS: dict[Point, tuple[str, ...]] = {Point(1, 17, 32): (PAPER, SOFTMAX), Point(1, 80, 32): (SGEMM,)}
SUBJECTS = (DIGITS, VIT_S)
PEERS = (EAGER, SOFTMAX_MODEL)


class WrongAnswer(Exception):
    """The speed of a wrong answer is not compared."""


class Reading(NamedTuple):
    """A ratio, higher is better. ``doubt`` has the reason why it decides nothing, such as a busy machine."""

    ratio: Percentiles
    doubt: str | None = None


# One contest, which has one or more ratios by name.
Group = Callable[[], Mapping[str, Reading]]


class Comparison(NamedTuple):
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
        before = [f"{expected:.2f}", f"{found.median / expected - 1:+.0%}"] if expected else ["–", "–"]
        now = f"{found.median:.2f} ({found.p10:.2f} to {found.p90:.2f})"
        return [self.name, before[0], now, before[1], str(len(self.readings)), self.outcome]


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


def as_baseline(comparisons: Sequence[Comparison], machine: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "provisional": any(c.best.doubt is not None for c in comparisons),
        "machine": {key: machine[key] for key in ("cpu", "cores", "versions")},
        "ratios": {c.name: {k: round(value, 4) for k, value in c.best.ratio.as_dict().items()} for c in comparisons},
    }


def release_groups(pace: Pace, threads: int, folder: Path, quick: bool = False) -> list[Group]:
    """Export and open everything; the groups measure when they are called."""
    points = QUICK_POINTS if quick else POINTS
    groups: list[Group] = []
    for width in dict.fromkeys(point.width for point in points):
        print(f"exporting the operator, d = {width}", flush=True)
        operators = Operators(width, threads, folder)
        groups += [partial(_attention, operators, *item, pace) for item in points.items() if item[0].width == width]
    for subject in QUICK[:1] if quick else SUBJECTS:
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
        raise WrongAnswer(f"{name}: no time for {', '.join(absent)}. {opened.missing}")
    found = {f"{name}, batch 1: {ORT} against {peer}": row.contest.ratio(ORT, peer) for peer in PEERS}
    return _readings(found, row.contest)


def _readings(ratios: Mapping[str, Percentiles | None], contest: Contest) -> dict[str, Reading]:
    doubt = contention_doubt(contest.busy, contest.threads)
    return {name: Reading(ratio, doubt) for name, ratio in ratios.items() if ratio is not None}


class BadBaseline(Exception):
    """The file cannot be read."""


def kind_of(machine: Mapping[str, Any], threads: int) -> str:
    """The kind of machine that a baseline holds for."""
    return f"{machine['instructions']}, {plural(threads, 'thread')}"


def read_baselines(path: Path) -> dict[str, dict[str, Any]]:
    try:
        baselines: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["baselines"]
        for baseline in baselines.values():
            expected_ratios(baseline)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadBaseline(f"{path} cannot be read as baselines ({error!r}); restore it, or remove it first.") from error
    return baselines


def expected_ratios(baseline: Mapping[str, Any]) -> dict[str, float]:
    return {name: figures["median"] for name, figures in baseline["ratios"].items()}


def conclude(comparisons: Sequence[Comparison], baseline: Mapping[str, Any]) -> tuple[int, str]:
    """The exit code, and why."""
    if baseline.get("provisional"):
        return (
            UNDECIDABLE,
            "The baseline was measured on a busy machine and decides nothing; write it again with --write.",
        )
    if slower := [c.name for c in comparisons if c.outcome == REGRESSED]:
        return FAILED, f"Slower by more than {TOLERATED:.0%} in every attempt: {'; '.join(slower)}."
    misfits = [f"{c.name} (no baseline)" for c in comparisons if c.expected is None]
    # A check that no longer measures a ratio of the baseline would pass.
    misfits += [f"{name} (not measured)" for name in sorted(set(baseline["ratios"]) - {c.name for c in comparisons})]
    if misfits:
        return FAILED, f"The baseline does not fit what is measured: {'; '.join(misfits)}. Write it again with --write."
    if undecided := [c for c in comparisons if c.outcome == UNDECIDED]:
        return UNDECIDABLE, f"Nothing was decided on {len(undecided)} of {len(comparisons)}: {undecided[0].best.doubt}"
    return SUCCESS, "Every ratio held."


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    parser.add_argument("--write", action="store_true", help="record the baseline of this kind of processor")
    options = parse(parser, arguments)
    machine = describe_machine()
    kind = kind_of(machine, options.threads)
    try:
        baselines = read_baselines(options.baseline) if options.baseline.exists() else {}
        if kind not in baselines and not options.write:
            print(
                f"error: {options.baseline} has no baseline for {kind} ({machine['cpu']}), only for "
                f"{' / '.join(baselines) or 'nothing'}. Record one on a quiet machine, from a release that is known to "
                "be good: python benchmarks/check.py --write",
                file=sys.stderr,
            )
            return UNDECIDABLE
        baseline = {"ratios": {}} if options.write else baselines[kind]
        with tempfile.TemporaryDirectory() as folder:
            groups = release_groups(options.pace, options.threads, Path(folder), options.quick)
            comparisons = compare(groups, expected_ratios(baseline))
    except (BadBaseline, WrongAnswer) as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE if isinstance(error, BadBaseline) else FAILED
    print(table(["ratio", "baseline", "now", "change", "attempts", ""], [c.row() for c in comparisons]))
    if options.write:
        write_baseline(options.baseline, baselines | {kind: as_baseline(comparisons, machine)}, kind)
        return SUCCESS
    code, reason = conclude(comparisons, baseline)
    print(f"Compared with {kind}, measured on {baseline['machine']['cpu']}; this is {machine['cpu']}.\n{reason}")
    return code


def write_baseline(path: Path, baselines: Mapping[str, dict[str, Any]], kind: str) -> None:
    about = "Ratios of our operator and models, higher is better; written by benchmarks/check.py --write."
    content = {"about": about, "baselines": dict(sorted(baselines.items()))}
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    busy = " It is provisional: other processes used the cores meanwhile." if baselines[kind]["provisional"] else ""
    print(f"wrote the baseline for {kind} to {path}.{busy}")


if __name__ == "__main__":
    sys.exit(main())
