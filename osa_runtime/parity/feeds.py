"""The inputs of a verification: several sizes, and kinds of values that are difficult for different reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from osa_runtime.errors import InputError
from osa_runtime.interface import Interface
from osa_runtime.sample_inputs import FLOAT_KINDS, ID_KINDS, Array, sample_inputs

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
    floats = any(spec.dtype.startswith("float") for spec in interface.inputs)
    kinds = [kind for kind in (FLOAT_KINDS if floats else ID_KINDS) if kind != "random"]
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
