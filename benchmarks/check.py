"""Has a release become slower? A few ratios, measured now, against those in benchmarks/baseline.json.

Ratios, because they say the same on a slow and on a fast machine of one kind: how many times as fast as a peer in the
same rounds. One that has lost more than 15 % is measured twice more; only if it stays low is the exit code 1. On a
machine that others use, or against a baseline from such a one, nothing is decided: exit code 3. A wrong answer
fails at once, with exit code 1.

    python benchmarks/check.py [--rounds 15] [--threads 2] [--baseline FILE] [--quick]
    python benchmarks/check.py --write     # on a quiet machine: the figures of now become the baseline
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from speed import results
from speed.baseline import (
    HELD,
    REGRESSED,
    TOLERATED,
    UNDECIDED,
    Comparison,
    as_baseline,
    compare,
    expected_ratios,
    forgotten,
)
from speed.markdown import table
from speed.release_ratios import WrongAnswer, release_groups

from osa_runtime.atomic import atomic_file
from osa_runtime.benchmarking.machine import describe_machine

BASELINE = Path(__file__).resolve().parent / "baseline.json"
SUCCESS, FAILED, USAGE, UNDECIDABLE = 0, 1, 2, 3


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    results.add_options(parser)
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    parser.add_argument("--write", action="store_true", help="write the baseline instead of comparing with it")
    return results.checked(parser, None if arguments is None else list(arguments))


def read_baseline(path: Path, threads: int) -> dict[str, Any]:
    """Raises ValueError where it cannot be compared with."""
    try:
        baseline: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        expected_ratios(baseline)
        recorded = baseline["threads"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} cannot be read as a baseline ({error!r}); write one with benchmarks/check.py --write."
        ) from error
    if recorded != threads:
        raise ValueError(
            f"{path} was measured with {recorded} threads, and --threads is {threads}; ratios depend on it. "
            f"Check with --threads {recorded}, or write a baseline with --write."
        )
    return baseline


def notes(baseline: dict[str, Any], machine: dict[str, Any]) -> list[str]:
    found = []
    recorded = baseline.get("machine", {}).get("cpu")
    if recorded != machine["cpu"]:
        found.append(f"the baseline was measured on {recorded}, this is {machine['cpu']}: ratios may differ for that.")
    return found


def report(comparisons: Sequence[Comparison]) -> str:
    rows = []
    for c in comparisons:
        change = "–" if c.change is None else f"{c.change:+.0%}"
        expected = "–" if c.expected is None else f"{c.expected:.2f}"
        spread = f"{c.best.ratio.median:.2f} ({c.best.ratio.p10:.2f} to {c.best.ratio.p90:.2f})"
        rows.append([c.name, expected, spread, change, str(len(c.readings)), c.outcome])
    return table(["ratio", "baseline", "now", "change", "attempts", ""], rows)


def conclude(comparisons: Sequence[Comparison], missing: Sequence[str], provisional: bool = False) -> tuple[int, str]:
    """The exit code, and why."""
    if provisional:
        return (
            UNDECIDABLE,
            "The baseline was measured on a busy machine and decides nothing; write it anew with --write.",
        )
    slower = [c.name for c in comparisons if c.outcome == REGRESSED]
    if slower:
        return FAILED, f"Slower by more than {TOLERATED:.0%} in every attempt: {'; '.join(slower)}."
    unknown = [c.name for c in comparisons if c.expected is None]
    if unknown or missing:
        names = "; ".join([*(f"{name} (no baseline)" for name in unknown), *(f"{m} (not measured)" for m in missing)])
        return FAILED, f"The baseline does not fit what is measured: {names}. Write it anew with --write."
    undecided = [c for c in comparisons if c.outcome == UNDECIDED]
    if undecided:
        return UNDECIDABLE, f"Nothing was decided on {len(undecided)} of {len(comparisons)}: {undecided[0].best.doubt}"
    assert all(c.outcome == HELD for c in comparisons)
    return SUCCESS, "Every ratio held."


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments)
    baseline: dict[str, Any] = {"ratios": {}}
    if not chosen.write:
        try:
            baseline = read_baseline(chosen.baseline, chosen.threads)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return USAGE
    machine = describe_machine()
    expected = expected_ratios(baseline)
    with tempfile.TemporaryDirectory() as folder:
        say = lambda text: print(text, flush=True)  # noqa: E731
        groups = release_groups(chosen.pace, chosen.threads, Path(folder), say, chosen.quick)
        try:
            comparisons = compare(groups, expected, say)
        except WrongAnswer as error:
            print(f"error: {error}", file=sys.stderr)
            return FAILED
    print(report(comparisons))
    if chosen.write:
        content = as_baseline(comparisons, machine, chosen.threads)
        with atomic_file(chosen.baseline) as path:
            path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        busy = " It is provisional: other processes used the cores meanwhile." if content["provisional"] else ""
        print(f"wrote {chosen.baseline}.{busy}")
        return SUCCESS
    for note in notes(baseline, machine):
        print(f"note: {note}")
    code, reason = conclude(comparisons, forgotten(comparisons, expected), bool(baseline.get("provisional")))
    print(reason)
    return code


if __name__ == "__main__":
    sys.exit(main())
