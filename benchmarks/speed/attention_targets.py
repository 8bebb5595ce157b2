"""What the exported operator must reach, and whether it did."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from osa_runtime.benchmarking.figures import Spread, block_medians
from speed.attention_contenders import PAPER, SGEMM, SOFTMAX, Row, minimal_flops
from speed.attention_inputs import TRAINED_NORM, Point
from speed.attention_peers import sgemm_flops
from speed.break_even import break_even, describe_ranges
from speed.contest import spread_of
from speed.verdict import Verdict, at_least, not_measured

LONG = 4096
LONGEST = 65536
MIB, GIB = 1 << 20, 1 << 30


def verdicts(
    rows: Sequence[Row], grid: Sequence[tuple[int, int]], memory: Mapping[str, int] | None, ours: str
) -> Iterator[Verdict]:
    """``grid`` has (batch, tokens); ``memory`` is of the longest sequence; ``ours`` is the layout that is judged."""
    by_point = {row.point: row for row in rows}
    widths = sorted({row.point.width for row in rows}, reverse=True)
    yield from _against_paper([by_point.get(Point(*place, width)) for width in widths for place in grid], ours)
    for width, tokens, least in ((64, 1024, 2.5), (64, LONG, 12.0), (32, LONG, 25.0)):
        row = by_point.get(Point(1, tokens, width))
        found = speed_up(row, ours, SOFTMAX) if row else None
        yield at_least(f"softmax in ONNX Runtime, {tokens} tokens, d = {width}: {least:g} × as fast", least, found)
    for width, most in ((64, 450), (32, 200)):
        yield _break_even(softmax_ratios(rows, width, ours), width, most)
    yield _share_of_sgemm([row for row in rows if row.point.tokens >= LONG and row.point.width == 64], ours)
    yield _growth(by_point.get(Point(1, LONG, 64)), by_point.get(Point(1, LONGEST, 64)), ours)
    yield _memory(memory)


def speed_up(row: Row, ours: str, theirs: str) -> Spread | None:
    return row.contest.ratio(ours, theirs) if ours in row.contest and theirs in row.contest else None


def softmax_ratios(rows: Sequence[Row], width: int, ours: str) -> dict[int, float]:
    """Times as fast as softmax, by length, at a batch of 1."""
    found = {}
    for row in rows:
        if (row.point.batch, row.point.width, row.point.norm) == (1, width, TRAINED_NORM):
            ratio = speed_up(row, ours, SOFTMAX)
            if ratio is not None:
                found[row.point.tokens] = ratio.median
    return found


def share_of_sgemm(row: Row, ours: str) -> Spread | None:
    """The rate over the minimal operations, relative to the rate of one large product in the same rounds."""
    if ours not in row.contest or SGEMM not in row.contest:
        return None
    rate = minimal_flops(row.point) / block_medians(row.contest.blocks[ours])
    limit = sgemm_flops() / block_medians(row.contest.blocks[SGEMM])
    return spread_of(rate / limit)


def growth_exponent(short: Row, long: Row, ours: str) -> float:
    """b where the time grows with length to the power of b."""
    times = [row.contest.milliseconds(ours).median for row in (short, long)]
    return math.log(times[1] / times[0]) / math.log(long.point.tokens / short.point.tokens)


def _against_paper(rows: Sequence[Row | None], ours: str) -> Iterator[Verdict]:
    each, mean = (
        f"the paper's method in eager: {text}"
        for text in ("4 × as fast at every point of the grid", "6 × in the geometric mean")
    )
    ratios = {row.point: speed_up(row, ours, PAPER) for row in rows if row is not None}
    found = {point: ratio.median for point, ratio in ratios.items() if ratio is not None}
    if not rows or len(found) < len(rows):
        yield not_measured(each)
        yield not_measured(mean)
        return
    least = min(found, key=lambda point: found[point])
    yield Verdict(each, f"{found[least]:.2f} × at least ({least})", found[least] >= 4)
    geometric = float(np.exp(np.mean(np.log(list(found.values())))))
    yield Verdict(mean, f"{geometric:.2f} ×", geometric >= 6)


def _break_even(ratios: Mapping[int, float], width: int, most: int) -> Verdict:
    target = f"faster than softmax in ONNX Runtime beyond {most} tokens, d = {width}"
    if not ratios or max(ratios) < most:
        return not_measured(target)
    found = break_even(ratios)
    beyond = "never" if found is None else f"beyond {found:.0f}"
    return Verdict(target, f"{beyond}; {describe_ranges(ratios)}", found is not None and found <= most)


def _share_of_sgemm(rows: Sequence[Row], ours: str) -> Verdict:
    target = f"65 % of the rate of one large sgemm from {LONG} tokens on, d = 64"
    shares = {row.point.tokens: share_of_sgemm(row, ours) for row in rows}
    found = {tokens: share.median for tokens, share in shares.items() if share is not None}
    if not found:
        return not_measured(target)
    text = ", ".join(f"{share:.0%} at {tokens}" for tokens, share in sorted(found.items()))
    return Verdict(target, text, min(found.values()) >= 0.65)


def _growth(short: Row | None, long: Row | None, ours: str) -> Verdict:
    target = f"time grows with length^1.05 at most, {LONG} to {LONGEST} tokens, d = 64"
    if short is None or long is None or ours not in short.contest or ours not in long.contest:
        return not_measured(target)
    found = growth_exponent(short, long, ours)
    return Verdict(target, f"length^{found:.3f}", found <= 1.05)


def _memory(memory: Mapping[str, int] | None) -> Verdict:
    target = f"less than 1 GiB of memory at {LONGEST} tokens, d = 64"
    if memory is None or memory["tokens"] != LONGEST:
        return not_measured(target)
    whole, without = memory["peak"], memory["peak"] - memory["inputs"] - memory["outputs"]
    text = f"{whole / MIB:.0f} MiB with inputs and outputs, {without / MIB:.0f} MiB without"
    return Verdict(target, text, whole < GIB)
