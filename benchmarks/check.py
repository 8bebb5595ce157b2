"""Has a release become slower? A few ratios, measured now, against those in benchmarks/baseline.json.

Ratios, because they are the same on a slow and on a fast machine of one kind: how many times as fast as a peer in the
same rounds. One that has lost more than 15 % is measured twice more; only if it stays low is the exit code 1. On a
busy machine, or against a baseline from one, nothing is decided: exit code 3. A wrong answer fails at once: exit code 1
as well.

    python benchmarks/check.py [--rounds 15] [--threads 2] [--baseline FILE] [--quick]
    python benchmarks/check.py --write     # on a quiet machine: the figures of now become the baseline
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from speed.release_ratios import (
    REGRESSED,
    TOLERATED,
    UNDECIDED,
    Comparison,
    WrongAnswer,
    as_baseline,
    compare,
    release_groups,
)
from speed.report import parse, parser_of, table, write_text

from osa_runtime.benchmarking.machine import describe_machine

BASELINE = Path(__file__).resolve().parent / "baseline.json"
SUCCESS, FAILED, USAGE, UNDECIDABLE = 0, 1, 2, 3


class BadBaseline(Exception):
    """The baseline cannot be compared with."""


def read_baseline(path: Path, threads: int) -> dict[str, Any]:
    try:
        baseline: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        expected_ratios(baseline)
        recorded = baseline["threads"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadBaseline(
            f"{path} cannot be read as a baseline ({error!r}); write one with benchmarks/check.py --write."
        ) from error
    if recorded != threads:
        raise BadBaseline(
            f"{path} was measured with {recorded} threads, and --threads is {threads}; ratios depend on it. "
            f"Check with --threads {recorded}, or write a baseline with --write."
        )
    return baseline


def expected_ratios(baseline: dict[str, Any]) -> dict[str, float]:
    return {name: figures["median"] for name, figures in baseline["ratios"].items()}


def conclude(comparisons: Sequence[Comparison], baseline: dict[str, Any]) -> tuple[int, str]:
    """The exit code, and why."""
    if baseline.get("provisional"):
        busy = "The baseline was measured on a busy machine and decides nothing; write it anew with --write."
        return UNDECIDABLE, busy
    slower = [c.name for c in comparisons if c.outcome == REGRESSED]
    if slower:
        return FAILED, f"Slower by more than {TOLERATED:.0%} in every attempt: {'; '.join(slower)}."
    # A check that no longer measures a ratio of the baseline would pass.
    forgotten = sorted(set(baseline["ratios"]) - {c.name for c in comparisons})
    misfits = [f"{c.name} (no baseline)" for c in comparisons if c.expected is None]
    misfits += [f"{name} (not measured)" for name in forgotten]
    if misfits:
        names = "; ".join(misfits)
        return FAILED, f"The baseline does not fit what is measured: {names}. Write it anew with --write."
    undecided = [c for c in comparisons if c.outcome == UNDECIDED]
    if undecided:
        return UNDECIDABLE, f"Nothing was decided on {len(undecided)} of {len(comparisons)}: {undecided[0].best.doubt}"
    return SUCCESS, "Every ratio held."


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    parser.add_argument("--write", action="store_true", help="write the baseline instead of comparing with it")
    options = parse(parser, arguments)
    machine = describe_machine()
    try:
        baseline: dict[str, Any] = {"ratios": {}} if options.write else read_baseline(options.baseline, options.threads)
        with tempfile.TemporaryDirectory() as folder:
            groups = release_groups(options.pace, options.threads, Path(folder), options.quick)
            comparisons = compare(groups, expected_ratios(baseline))
    except (BadBaseline, WrongAnswer) as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE if isinstance(error, BadBaseline) else FAILED
    print(table(["ratio", "baseline", "now", "change", "attempts", ""], [c.row() for c in comparisons]))
    if options.write:
        content = as_baseline(comparisons, machine, options.threads)
        write_text(options.baseline, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        busy = " It is provisional: other processes used the cores meanwhile." if content["provisional"] else ""
        print(f"wrote {options.baseline}.{busy}")
        return SUCCESS
    recorded = baseline.get("machine", {}).get("cpu")
    if recorded != machine["cpu"]:
        print(f"note: the baseline was measured on {recorded}, this is {machine['cpu']}: ratios may differ for that.")
    code, reason = conclude(comparisons, baseline)
    print(reason)
    return code


if __name__ == "__main__":
    sys.exit(main())
