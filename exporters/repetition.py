"""Find the block that a deep network repeats, from the order and the wiring of its nodes alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

SMALLEST_BLOCK = 4  # shorter repetitions are not blocks: the three slices of q, k and v
LARGEST_BLOCK = 400  # keeps the search below a second or two for graphs of thousands of nodes

Readers = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Repetition:
    """The same block several times: for each time the nodes of it, in the same order. ``path`` names the first."""

    blocks: tuple[tuple[int, ...], ...]
    path: str

    @property
    def name(self) -> str:
        """``stack.blocks.0 to 7``"""
        match = re.search(r"^(.*?)(\d+)$", self.path)
        if match is None:
            return self.path or "block"
        return f"{match[1]}{match[2]} to {int(match[2]) + len(self.blocks) - 1}"


def find_repetition(operators: Sequence[str], reads: Readers, names: Sequence[str]) -> Repetition | None:
    """The repetition that covers most nodes, None where there is none. ``reads`` holds the nodes that each reads."""
    readers = _readers(reads)
    best: tuple[int, int, int, list[int]] | None = None  # nodes in whole blocks, start, period, the order
    for period in range(SMALLEST_BLOCK, min(len(operators) // 2, LARGEST_BLOCK) + 1):
        order = _without_shared(reads, readers, period)
        covered, start = _longest_run(operators, reads, order, period)
        whole = covered // period * period
        if whole >= 2 * period and (best is None or whole > best[0]):
            start = _aligned(start, covered - whole, period, [names[index] for index in order])
            best = (whole, start, period, order)
    if best is None:
        return None
    whole, start, period, order = best
    blocks = tuple(tuple(order[begin : begin + period]) for begin in range(start, start + whole, period))
    return Repetition(blocks, _common_path([names[index] for index in blocks[0]]))


def _readers(reads: Readers) -> list[list[int]]:
    readers: list[list[int]] = [[] for _ in reads]
    for index, sources in enumerate(reads):
        for source in sources:
            readers[source].append(index)
    return readers


def _without_shared(reads: Readers, readers: Readers, period: int) -> list[int]:
    """The nodes in order, without what several blocks share, such as a mask or a shape, and what only leads there."""
    shared = {index for index, later in enumerate(readers) if later and later[-1] - index > period}
    for index in range(len(reads) - 1, -1, -1):
        if readers[index] and shared.issuperset(readers[index]):
            shared.add(index)
    return [index for index in range(len(reads)) if index not in shared]


def _longest_run(operators: Sequence[str], reads: Readers, order: Sequence[int], period: int) -> tuple[int, int]:
    """How many nodes the longest stretch of this period covers, and where in the order it starts."""
    place = {index: position for position, index in enumerate(order)}
    best, run = (0, 0), 0
    for position in range(len(order) - period):
        one, other = order[position], order[position + period]
        same = operators[one] == operators[other] and (
            _wiring(one, operators, reads, place) == _wiring(other, operators, reads, place)
        )
        run = run + 1 if same else 0
        if run and run + period > best[0]:
            best = (run + period, position - run + 1)
    return best


def _wiring(index: int, operators: Sequence[str], reads: Readers, place: dict[int, int]) -> list[int | str]:
    """How far back a node reads; of what is shared, only the operator counts."""
    return [place[index] - place[s] if s in place else operators[s] for s in reads[index]]


def _aligned(start: int, spare: int, period: int, names: Sequence[str]) -> int:
    """A run may begin a node or two before the first block; the module names tell where the block does."""
    return max(
        range(start, start + spare + 1),
        key=lambda begin: (len(_common_path(names[begin : begin + period])), begin),
    )


def _common_path(names: Sequence[str]) -> str:
    paths = [name.rpartition("/")[0].split(".") for name in names if "/" in name]  # inlined nodes have no path
    common = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)
