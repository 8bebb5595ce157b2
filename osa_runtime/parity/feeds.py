"""The inputs of a verification: several sizes, and kinds of values that are difficult for different reasons.

The plain sweep is run first. The wide one is a plan of kinds, sizes and seeds; its values are made when a case is run.
It covers what a few samples could miss: batches beyond those that the server makes, every length that a form begins or
ends at and a grid between, all ways of padding at several lengths, every id, magnitudes through every threshold of the
exponential, pixels as the recorded preprocessing makes them, NaN and Inf.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from osa_runtime.errors import InputError
from osa_runtime.interface import Interface
from osa_runtime.sample_inputs import FLOAT_KINDS, ID_KINDS, MASK_KINDS, PICTURE_KINDS, Array, sample_inputs

BATCHES = (1, 2, 5)
LONGEST = 1024  # longer ones must be requested

Sizes = dict[str, int]


@dataclass(frozen=True)
class Case:
    """One set of inputs."""

    kind: str
    sizes: dict[str, int]
    feeds: dict[str, Array]

    @property
    def name(self) -> str:
        return " ".join([self.kind, *(f"{axis}={size}" for axis, size in self.sizes.items())])


def sweep(
    interface: Interface,
    *,
    seed: int = 0,
    width: int | None = None,
    batches: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
) -> Iterator[Case]:
    """Random values at every size, the other kinds at one size that is neither 1 nor even.

    ``width`` is the size d of a head: lengths below and above 2d take different paths through the model.
    """
    sizes = all_sizes(interface, width, batches, lengths)
    for index, chosen in enumerate(sizes):
        yield Case("random", chosen, sample_inputs(interface, chosen, seed=seed + index))
    middle = _middle(interface, sizes)
    for index, kind in enumerate(_kinds(interface)):
        yield Case(kind, middle, sample_inputs(interface, middle, kind, seed + 1000 + index))


def _kinds(interface: Interface) -> list[str]:
    kinds = [kind for kind in (FLOAT_KINDS if _has_floats(interface) else ID_KINDS) if kind != "random"]
    return kinds + (["padded"] if interface.mask is not None else [])


def _middle(interface: Interface, sizes: Sequence[dict[str, int]]) -> dict[str, int]:
    """A batch of several rows, at a length from the middle of the sweep."""
    chosen, batch = dict(sizes[len(sizes) // 2]), interface.batch
    if batch is not None:
        chosen[batch] = max((size[batch] for size in sizes if size[batch] <= 3), default=chosen[batch])
    return chosen


def all_sizes(
    interface: Interface, width: int | None, batches: Sequence[int] | None, lengths: Sequence[int] | None
) -> list[Sizes]:
    """Every batch size at every length if batches were requested; otherwise one for each length, in turn."""
    rows, long = _batches(interface, batches), _lengths(interface, width, lengths)
    if batches is None and len(long) > 1:
        pairs = [rows[index % len(rows)] | chosen for index, chosen in enumerate(long)]
    else:
        pairs = [few | chosen for chosen in long for few in rows]
    return [{axis: sizes[axis] for axis in interface.names} for sizes in pairs]


def default_lengths(limit: int | None, width: int | None) -> list[int]:
    """Lengths of one token, odd, around 2d, longer than any example, and the longest up to ``LONGEST``."""
    twice = 2 * (width or 16)
    wanted = [1, 7, twice - 1, twice, twice + 1, 2 * twice + 3]
    if limit is not None:
        wanted = [length for length in wanted if length < limit] + [min(limit, LONGEST)]
    return sorted(set(wanted))


def _batches(interface: Interface, batches: Sequence[int] | None) -> list[Sizes]:
    if interface.batch is None:
        _refuse("batches", batches)
        return [{}]
    return [{interface.batch: size} for size in _fitting(interface, interface.batch, batches, BATCHES)]


def _lengths(interface: Interface, width: int | None, lengths: Sequence[int] | None) -> list[Sizes]:
    """The same length for all axes except the batch, as far as each of them takes it."""
    if not interface.lengths:
        _refuse("lengths", lengths)
        return [{}]
    first, *others = interface.lengths
    found = []
    for length in _fitting(interface, first, lengths, default_lengths(interface.limit(first), width)):
        asked = None if lengths is None else [length]
        found.append({first: length} | {axis: _fitting(interface, axis, asked, [length])[0] for axis in others})
    return found


def _fitting(interface: Interface, axis: str, asked: Sequence[int] | None, usual: Sequence[int]) -> list[int]:
    """The requested sizes, each once, or the usual ones as far as the axis takes them."""
    least, limit = interface.least(axis), interface.limit(axis)
    for size in asked or ():
        if not interface.takes(axis, size):
            most = "" if limit is None else f" to {limit}"
            raise InputError(f"The axis {axis} takes sizes from {least}{most}, got {size}.")
    return list(dict.fromkeys(interface.fitting(axis, size) for size in asked or usual))


def _refuse(name: str, sizes: Sequence[int] | None) -> None:
    if sizes is not None:
        raise InputError(
            f"{name}='{','.join(map(str, sizes))}' was given, but the model has no dynamic axis for it; leave it out."
        )


SERVED = 32  # rows in the largest batch that the server makes by default
MOST_DENSE = 1024  # tokens up to which the dense form is the fallback
SHORT = 9  # tokens in cases about the batch
LONGEST_WIDE = 4096  # longer ones must be requested
STEP = 4.0  # between magnitudes; ‖S‖ grows by its square
COARSE = (STEP**-9, STEP**-6, STEP**-3, 2.0, STEP**3, STEP**6)
# Close together where a deep model still has digits: clipping and other changes at large values show there.
FINE = (1.5, 3.0, *(STEP**power for power in (-8, 2, -1, 1, -5, 5, -7, 4, -4, 7, -2, 8)))
CELLS = 2048  # ids in one case


@dataclass(frozen=True)
class Planned:
    kind: str
    sizes: Sizes
    seed: int

    @property
    def cells(self) -> int:
        """The size that the cost is proportional to."""
        product = 1
        for size in self.sizes.values():
            product *= size
        return product

    @property
    def may_be_nan(self) -> bool:
        """True if NaN may be the right answer, which only a reference can tell."""
        return self.kind in ("broken", "empty") or (self.kind.startswith("scaled ") and float(self.kind[7:]) > 1)

    def case(self, interface: Interface) -> Case:
        return Case(self.kind, self.sizes, sample_inputs(interface, self.sizes, self.kind, self.seed))


def essential(interface: Interface, middle: Sizes, seed: int, *, grid: bool) -> list[Planned]:
    """The cases that are always run. ``grid`` is False if the user chose the sizes: then all have ``middle``."""
    found = [(kind, middle) for kind in _wide_kinds(interface)]
    if _has_floats(interface):
        # NaN in one row, Inf in another, and a third that must not be affected
        several = {axis: 3 for axis in middle if grid and axis == interface.batch}
        found.append(("broken", _limited(interface, middle | several)))
    if grid and interface.batch is not None:
        found.append(("random", _sized(interface, middle, SERVED + 1, SHORT)))
        long = _sized(interface, middle, 2, 2 * SERVED + 6)
        found += [(kind, long) for kind in MASK_KINDS if interface.mask is not None and long != middle]
    found += list(_ids(interface, middle, at_most=2 * CELLS))
    return _planned(found, seed + 2000)


def further(interface: Interface, middle: Sizes, width: int | None, seed: int) -> list[Planned]:
    """The cases that are run while there is time, the most different first."""
    groups = [
        [(f"scaled {factor:.6g}", middle) for factor in FINE if _has_floats(interface)],
        [("random", _sized(interface, middle, rows, SHORT)) for rows in _wide_batches() if interface.batch is not None],
        [("random", _sized(interface, middle, 2, length)) for length in _wide_lengths(interface, width)],
        list(_masks(interface, middle, width)),
        list(_ids(interface, middle)),
    ]
    in_turn = [entry for turn in itertools.zip_longest(*groups) for entry in turn if entry is not None]
    return _planned(in_turn, seed + 3000)


def _planned(entries: Iterable[tuple[str, Sizes]], seed: int) -> list[Planned]:
    """Each kind at each size once."""
    unique = {(kind, *sizes.items()): (kind, sizes) for kind, sizes in entries}
    return [Planned(kind, sizes, seed + index) for index, (kind, sizes) in enumerate(unique.values())]


def _wide_kinds(interface: Interface) -> Iterator[str]:
    if _has_floats(interface):
        yield from (f"scaled {factor:.6g}" for factor in COARSE)
    if interface.pixels:
        yield from PICTURE_KINDS
    if interface.mask is not None:
        yield from (kind for kind in MASK_KINDS if kind != "padded")  # it is in the plain sweep


def _has_floats(interface: Interface) -> bool:
    return any(spec.dtype.startswith("float") for spec in interface.inputs)


def _wide_batches() -> list[int]:
    """Every size up to the server's largest, from both ends, and some beyond."""
    near = [3, 9, SERVED, 2 * SERVED, 17, 4, 8, 16, 24, SERVED - 1, 6, 12, 20, 28, 48]
    return list(dict.fromkeys([*near, *range(1, SERVED + 2)]))


def _wide_lengths(interface: Interface, width: int | None) -> list[int]:
    """Thresholds and a coarse grid, then a finer one."""
    if not interface.lengths:
        return []
    most = min(interface.limit(interface.lengths[0]) or MOST_DENSE + 1, LONGEST_WIDE)
    twice = 2 * (width or 16)
    thresholds = [twice - 1, twice, twice + 1, MOST_DENSE - 1, MOST_DENSE, MOST_DENSE + 1, most]
    coarse = [int(2 ** (step / 2)) for step in range(1, 24)]
    fine = [int(1.12**step) for step in range(1, 74)]
    wanted = dict.fromkeys([*coarse, *thresholds, *fine])
    return [length for length in wanted if length <= most]


def _masks(interface: Interface, middle: Sizes, width: int | None) -> Iterator[tuple[str, Sizes]]:
    lengths = _wide_lengths(interface, width)[2::2] if interface.mask is not None else []
    for index, length in enumerate(lengths):
        yield MASK_KINDS[index % len(MASK_KINDS)], _sized(interface, middle, 3, length)


def _ids(interface: Interface, middle: Sizes, at_most: int | None = None) -> Iterator[tuple[str, Sizes]]:
    """Cases that hold every id once, where the vocabulary is not larger than ``at_most``."""
    ranges = [limits for name, limits in interface.values.items() if name not in interface.pixels]
    count = max((limits["max"] - limits["min"] + 1 for limits in ranges), default=0)
    if not count or (at_most is not None and count > at_most):
        return
    sizes = _sized(interface, middle, min(SERVED, -(-count // 64)), min(64, count))
    held = max(1, Planned("", sizes, 0).cells)
    yield from ((f"ids {start}", sizes) for start in range(0, count, held))


def _sized(interface: Interface, middle: Sizes, rows: int, length: int) -> Sizes:
    return _limited(interface, {axis: rows if axis == interface.batch else length for axis in middle})


def _limited(interface: Interface, wanted: Sizes) -> Sizes:
    """These sizes as far as the axes take them."""
    return {axis: interface.fitting(axis, size) for axis, size in wanted.items()}
