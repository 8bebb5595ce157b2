"""The targets of the exported operator, and the lengths at which softmax is faster."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from osa_runtime.benchmarking.result import Percentiles, block_medians, spread_of
from speed.attention_contenders import PAPER, SGEMM, SGEMM_FLOPS, SOFTMAX, minimal_flops
from speed.attention_inputs import TRAINED_NORM, Point
from speed.contest import Row
from speed.report import MIB, Verdict, at_least

LONG, LONGEST = 4096, 65536


def verdicts(
    rows: Sequence[Row], grid: Sequence[tuple[int, int]], memory: Mapping[str, int] | None, ours: str
) -> Iterator[Verdict]:
    """``grid`` has (batch, tokens); ``memory`` is of the longest sequence; ``ours`` is the layout that is judged."""
    by_place = {row.place: row for row in rows}
    widths = sorted({row.place.width for row in rows}, reverse=True)
    yield from _against_paper([by_place.get(Point(*place, width)) for width in widths for place in grid], ours)
    for width, tokens, least in ((64, 1024, 2.5), (64, LONG, 12.0), (32, LONG, 25.0)):
        row = by_place.get(Point(1, tokens, width))
        found = row.contest.ratio(ours, SOFTMAX) if row else None
        yield at_least(f"softmax in ONNX Runtime, {tokens} tokens, d = {width}: {least:g} × as fast", least, found)
    for width, most in ((64, 450), (32, 200)):
        yield _break_even(softmax_ratios(rows, width, ours), width, most)
    target = f"65 % of the rate of one large sgemm from {LONG} tokens on, d = 64"
    long = [row for row in rows if row.place.tokens >= LONG and row.place.width == 64]
    shares = {row.place.tokens: share.median for row in long if (share := share_of_sgemm(row, ours))}
    text = ", ".join(f"{share:.0%} at {tokens}" for tokens, share in sorted(shares.items()))
    yield Verdict(target, text, min(shares.values()) >= 0.65) if shares else Verdict(target)
    target = f"time grows with length^1.05 at most, {LONG} to {LONGEST} tokens, d = 64"
    power = growth_exponent(by_place.get(Point(1, LONG, 64)), by_place.get(Point(1, LONGEST, 64)), ours)
    yield Verdict(target) if power is None else Verdict(target, f"length^{power:.3f}", power <= 1.05)
    target = f"less than 1 GiB of memory at {LONGEST} tokens, d = 64"
    if memory is None or memory["tokens"] != LONGEST:
        yield Verdict(target)
    else:
        whole, without = memory["peak"], memory["peak"] - memory["inputs"] - memory["outputs"]
        text = f"{whole / MIB:.0f} MiB with inputs and outputs, {without / MIB:.0f} MiB without"
        yield Verdict(target, text, whole < 1024 * MIB)


def softmax_ratios(rows: Sequence[Row], width: int, ours: str) -> dict[int, float]:
    """Times as fast as softmax, by length, at a batch of 1."""
    of_width = [row for row in rows if (row.place.batch, row.place.width, row.place.norm) == (1, width, TRAINED_NORM)]
    found = {row.place.tokens: row.contest.ratio(ours, SOFTMAX) for row in of_width}
    return {tokens: ratio.median for tokens, ratio in found.items() if ratio is not None}


def share_of_sgemm(row: Row, ours: str) -> Percentiles | None:
    """The rate over the minimal operations, relative to the rate of one large product in the same rounds."""
    if ours not in row.contest or SGEMM not in row.contest:
        return None
    rate = minimal_flops(row.place) / block_medians(row.contest.blocks[ours])
    return spread_of(rate * block_medians(row.contest.blocks[SGEMM]) / SGEMM_FLOPS)


def growth_exponent(short: Row | None, long: Row | None, ours: str) -> float | None:
    """b where the time grows with length to the power of b."""
    if short is None or long is None or ours not in short.contest or ours not in long.contest:
        return None
    times = [row.contest.milliseconds(ours).median for row in (short, long)]
    return math.log(times[1] / times[0]) / math.log(long.place.tokens / short.place.tokens)


def losing_ranges(ratios: Mapping[int, float]) -> list[tuple[float, float]]:
    """The ranges of lengths in which the ratio is below 1.

    Between neighbouring lengths the logarithm of the ratio is taken to be linear in that of the length. A range that
    begins at the shortest, or ends at the longest length that was measured, may go on beyond it.
    """
    lengths = sorted(ratios)
    edges = [float(lengths[0])] if ratios[lengths[0]] < 1 else []
    for low, high in itertools.pairwise(lengths):
        if (ratios[low] < 1) != (ratios[high] < 1):
            part = math.log(ratios[low]) / math.log(ratios[low] / ratios[high])
            edges.append(low * (high / low) ** part)
    edges += [float(lengths[-1])] if ratios[lengths[-1]] < 1 else []
    return list(zip(edges[::2], edges[1::2], strict=True))


def break_even(ratios: Mapping[int, float]) -> float | None:
    """The length beyond which the ratio stays above 1; None where it does not at the longest length."""
    ranges = losing_ranges(ratios)
    if not ranges:
        return float(min(ratios))
    return None if ratios[max(ratios)] < 1 else ranges[-1][1]


def describe_ranges(ratios: Mapping[int, float]) -> str:
    """The lengths at which softmax wins, in words."""
    if not ratios:
        return "not measured"
    ranges = losing_ranges(ratios)
    if not ranges:
        return f"softmax wins nowhere from {min(ratios)} to {max(ratios)} tokens"
    spans = [f"{low:.0f} to {high:.0f}" if round(low) != round(high) else f"{low:.0f}" for low, high in ranges]
    return f"softmax wins at {', '.join(spans)} tokens (of {min(ratios)} to {max(ratios)})"


def _against_paper(rows: Sequence[Row | None], ours: str) -> Iterator[Verdict]:
    each = "the paper's method in eager: 4 × as fast at every point of the grid"
    mean = "the paper's method in eager: 6 × in the geometric mean"
    ratios = {row.place: row.contest.ratio(ours, PAPER) for row in rows if row is not None}
    found = {point: ratio.median for point, ratio in ratios.items() if ratio is not None}
    if not rows or len(found) < len(rows):
        yield from (Verdict(each), Verdict(mean))
        return
    least = min(found, key=lambda point: found[point])
    yield Verdict(each, f"{found[least]:.2f} × at least ({least})", found[least] >= 4)
    geometric = math.prod(found.values()) ** (1 / len(found))
    yield Verdict(mean, f"{geometric:.2f} ×", geometric >= 6)


def _break_even(ratios: Mapping[int, float], width: int, most: int) -> Verdict:
    target = f"faster than softmax in ONNX Runtime beyond {most} tokens, d = {width}"
    if not ratios or max(ratios) < most:
        return Verdict(target)
    found = break_even(ratios)
    beyond = "never" if found is None else f"beyond {found:.0f}"
    return Verdict(target, f"{beyond}; {describe_ranges(ratios)}", found is not None and found <= most)
