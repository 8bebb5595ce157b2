"""The sizes that a model is verified at: several batches, and lengths that take different ways through it."""

from __future__ import annotations

from collections.abc import Sequence

from osa_runtime.errors import InputError
from osa_runtime.parity.signature import Signature

BATCHES = (1, 2, 5)
LONGEST = 1024  # beyond that, a length must be asked for

Sizes = dict[str, int]


def all_sizes(
    signature: Signature, width: int | None, batches: Sequence[int] | None, lengths: Sequence[int] | None
) -> list[Sizes]:
    """Every batch size at every length where batches were asked for; otherwise one for each length, in turn."""
    rows, long = _batches(signature, batches), _lengths(signature, width, lengths)
    if batches is None and len(long) > 1:
        pairs = [rows[index % len(rows)] | chosen for index, chosen in enumerate(long)]
    else:
        pairs = [few | chosen for chosen in long for few in rows]
    return [{axis: sizes[axis] for axis in signature.names} for sizes in pairs]


def default_lengths(limit: int | None, width: int | None) -> list[int]:
    """One token, odd, around 2d, and longer than any example; and the longest, if it is not long."""
    twice = 2 * (width or 16)
    wanted = [1, 7, twice - 1, twice, twice + 1, 2 * twice + 3]
    if limit is not None:
        wanted = [length for length in wanted if length < limit] + [min(limit, LONGEST)]
    return sorted(set(wanted))


def _batches(signature: Signature, batches: Sequence[int] | None) -> list[Sizes]:
    if signature.batch is None:
        _refuse("batches", batches)
        return [{}]
    return [{signature.batch: size} for size in _fitting(signature, signature.batch, batches, BATCHES)]


def _lengths(signature: Signature, width: int | None, lengths: Sequence[int] | None) -> list[Sizes]:
    """All axes beside the batch get the same length, as far as each of them takes it."""
    if not signature.lengths:
        _refuse("lengths", lengths)
        return [{}]
    first, *others = signature.lengths
    found = []
    for length in _fitting(signature, first, lengths, default_lengths(signature.limit(first), width)):
        asked = None if lengths is None else [length]
        found.append({first: length} | {axis: _fitting(signature, axis, asked, [length])[0] for axis in others})
    return found


def _fitting(signature: Signature, axis: str, asked: Sequence[int] | None, usual: Sequence[int]) -> list[int]:
    """The sizes that were asked for, each once, or the usual ones as far as the axis takes them."""
    least, limit = signature.least(axis), signature.limit(axis)
    for size in asked or ():
        if size < least or (limit is not None and size > limit):
            most = "" if limit is None else f" to {limit}"
            raise InputError(f"The axis {axis} takes sizes from {least}{most}, got {size}.")
    fitting = [max(least, size if limit is None else min(size, limit)) for size in asked or usual]
    return list(dict.fromkeys(fitting))


def _refuse(name: str, sizes: Sequence[int] | None) -> None:
    if sizes is not None:
        raise InputError(
            f"{name}='{','.join(map(str, sizes))}' was given, but the model has no dynamic axis for it; leave it out."
        )
