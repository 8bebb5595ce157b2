"""The attention operator alone: ours, exported, against the paper's method, softmax, and the rate of one large product.

All contenders have the same inputs and threads and take turns in blocks. The exported operator runs in ONNX Runtime and
takes q, k and v by head, as all the others do. Softmax takes part with the fastest of its variants. Every answer is
compared with float64.

    python benchmarks/attention.py [--rounds 15] [--threads 2] [--quick] [--out benchmarks/results]
"""

import argparse
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from contenders.operators import (
    ALL,
    HEADS,
    OURS,
    PAPER,
    SGEMM,
    SOFTMAX,
    TRAINED_NORM,
    Point,
    open_contests,
    share_of_sgemm,
)
from driver.benchmark import Benchmark
from driver.contest import Contest, Row
from driver.report import Verdict, judge


class Sizes(NamedTuple):
    """``fine`` has more lengths for the comparison with softmax."""

    widths: tuple[int, ...]
    grid: tuple[tuple[int, int], ...]  # (batch, tokens)
    fine: tuple[int, ...]
    sgemm_from: int


FULL = Sizes(
    widths=(64, 32),
    grid=((1, 17), (1, 50), (1, 197), (8, 197), (1, 1024), (1, 4096), (1, 16384)),
    fine=(32, 64, 65, 96, 128, 129, 160, 256, 320, 384, 448, 512, 640, 768),  # 2d and 2d + 1: another form begins
    sgemm_from=4096,
)
QUICK = Sizes((32,), ((1, 17), (1, 80)), (64,), 80)
LONG = 4096


def plan(sizes: Sizes, width: int) -> dict[Point, tuple[str, ...]]:
    """The contenders at each point."""
    found: dict[Point, tuple[str, ...]] = {}
    for batch, tokens in sizes.grid:
        found[Point(batch, tokens, width)] = (*ALL, *[SGEMM] * (tokens >= sizes.sgemm_from))
    for tokens in sizes.fine:
        found.setdefault(Point(1, tokens, width), (OURS, SOFTMAX))
    return dict(sorted(found.items()))


def contests(options: argparse.Namespace) -> Iterator[Contest]:
    sizes = QUICK if options.quick else FULL
    for width in sizes.widths:
        yield from open_contests(plan(sizes, width), options.threads)


def targets(rows: Mapping[Point, Row]) -> Iterator[Verdict]:
    yield from against_paper(rows)
    for width, tokens, times in ((64, 1024, 2.5), (64, LONG, 12.0), (32, LONG, 25.0)):
        row = rows.get(Point(1, tokens, width))
        title = f"softmax in ONNX Runtime, {tokens} tokens, d = {width}: {times:g} × as fast"
        yield judge(title, row and row.ratio(OURS, SOFTMAX), least=times)
    for width, most in ((64, 450), (32, 200)):
        yield faster_beyond(most, width, softmax_ratios(rows, width))
    long = {point: row for point, row in rows.items() if point.tokens >= LONG and point.width == 64}
    shares = {point.tokens: share.median for point, row in long.items() if (share := share_of_sgemm(row))}
    text = ", ".join(f"{share:.0%} at {tokens}" for tokens, share in shares.items())
    target = f"65 % of the rate of one large sgemm from {LONG} tokens on, d = 64"
    yield judge(target, min(shares.values(), default=None), text, 0.65)


def against_paper(rows: Mapping[Point, Row]) -> Iterator[Verdict]:
    """Judged when every point of the grid has a ratio."""
    grid = [Point(*place, width) for width in {point.width for point in rows} for place in FULL.grid]
    found = {p: ratio.median for p in grid if p in rows and (ratio := rows[p].ratio(OURS, PAPER))}
    least, geometric = None, None
    if len(found) == len(grid) > 0:
        least = min(found, key=lambda point: found[point])
        geometric = math.prod(found.values()) ** (1 / len(found))
    target = "the paper's method in eager: 4 × as fast at every point of the grid"
    yield judge(target, least and found[least], f"{{:.2f}} × at least ({least})", 4)
    yield judge("the paper's method in eager: 6 × in the geometric mean", geometric, least=6)


def softmax_ratios(rows: Mapping[Point, Row], width: int) -> dict[int, float]:
    """Times as fast as softmax, by length, at a batch of 1."""
    chosen = {p.tokens: row.ratio(OURS, SOFTMAX) for p, row in rows.items() if (p.batch, p.width) == (1, width)}
    return {tokens: ratio.median for tokens, ratio in sorted(chosen.items()) if ratio is not None}


def faster_beyond(most: int, width: int, ratios: Mapping[int, float]) -> Verdict:
    target = f"faster than softmax in ONNX Runtime beyond {most} tokens, d = {width}"
    if not ratios or max(ratios) < most:
        return Verdict(target)
    found, measured = break_even(ratios), f"of {min(ratios)} to {max(ratios)} tokens"
    if found is None:
        return Verdict(target, f"never ({measured})", False)
    return judge(target, found, f"beyond {{:.0f}} ({measured})", most=most)


def break_even(ratios: Mapping[int, float]) -> float | None:
    """The length beyond which the ratio stays above 1; None where it does not at the longest length.

    Between neighbouring lengths the logarithm of the ratio is taken to be linear in that of the length.
    """
    lengths = sorted(ratios)
    slower = [number for number, tokens in enumerate(lengths) if ratios[tokens] < 1]
    if not slower:
        return float(lengths[0])
    low, *longer = lengths[slower[-1] :]
    if not longer:
        return None
    part = math.log(ratios[low]) / math.log(ratios[low] / ratios[longer[0]])
    return float(low * (longer[0] / low) ** part)


BENCHMARK = Benchmark(
    description=__doc__,
    name="attention",
    title="The attention operator",
    about=f"{HEADS} heads, float32, ‖S‖₂ = {TRAINED_NORM:g}. × is how many times as fast ours is.",
    contests=contests,
    targets=targets,
    contenders=ALL,
    ratios={"× paper": (OURS, PAPER), "× softmax": (OURS, SOFTMAX)},
    panel=lambda point: f"batch 1, {HEADS} heads, d = {point.width}" if point.batch == 1 else None,
)

if __name__ == "__main__":
    BENCHMARK.run()
