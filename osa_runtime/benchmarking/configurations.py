"""The batches and lengths that are measured, from the caller's choice and the model's limits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from osa_runtime.errors import InputError
from osa_runtime.interface import ANY_SHAPE, Interface

DEFAULT_BATCHES = (1, 8)
LONGEST_BY_DEFAULT = 1024
UNKNOWN_LENGTH = 16


@dataclass(frozen=True)
class Configuration:
    """One batch and one length; ``tokens`` is None for a model without an axis of that kind."""

    batch: int
    tokens: int | None = None

    def __str__(self) -> str:
        return f"batch {self.batch}" + ("" if self.tokens is None else f", {self.tokens} tokens")


@dataclass(frozen=True)
class DynamicAxes:
    """The named axes of a model that a configuration sizes."""

    interface: Interface

    @property
    def batch(self) -> str | None:
        return self.interface.batch

    @property
    def tokens(self) -> str | None:
        """The axis of that name, or the only one other than the batch."""
        lengths = self.interface.lengths
        return "tokens" if "tokens" in lengths else lengths[0] if len(lengths) == 1 else None

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(axis for axis in self.interface.lengths if axis != self.tokens)

    @property
    def fixed_batch(self) -> int | None:
        """The number of rows of a model with a fixed batch; None if it is dynamic or unknown."""
        known = [spec for spec in self.interface.inputs if spec.shape != ANY_SHAPE]
        first = known[0].shape[0] if known and known[0].shape else None
        return first if self.batch is None and isinstance(first, int) else None

    def sizes(self, configuration: Configuration) -> dict[str, int]:
        sizes = {self.batch: configuration.batch, self.tokens: configuration.tokens}
        return {name: size for name, size in sizes.items() if name is not None and size is not None}


def configurations(
    axes: DynamicAxes,
    batches: tuple[int, ...] | None,
    tokens: tuple[int, ...] | None,
    data: Configuration | None = None,
) -> list[Configuration]:
    """Every batch with every length. ``data`` has the sizes of the caller's own arrays, if there are any."""
    rows = _batches(axes, batches, data)
    lengths = _lengths(axes, tokens, data)
    return [Configuration(batch, length) for length, batch in itertools.product(lengths, rows)]


def _batches(axes: DynamicAxes, asked: tuple[int, ...] | None, data: Configuration | None) -> tuple[int, ...]:
    if axes.batch is not None:
        chosen = asked or tuple(size for size in DEFAULT_BATCHES if axes.interface.takes(axes.batch, size))
        _check_range("batches", axes.batch, chosen, axes)
        return chosen or (axes.interface.least(axes.batch),)
    if axes.fixed_batch is None:  # the axes are unknown, so the data decides
        return asked or (data.batch if data else 1,)
    if asked and asked != (axes.fixed_batch,):
        raise InputError(
            f"batches={_listed(asked)}, but the model was exported with a fixed batch of {axes.fixed_batch}; "
            "leave it out, or export without static=True."
        )
    return (axes.fixed_batch,)


def _lengths(axes: DynamicAxes, asked: tuple[int, ...] | None, data: Configuration | None) -> tuple[int | None, ...]:
    if axes.tokens is None:
        if asked:
            raise InputError(
                f"tokens={_listed(asked)}, but no axis of the model's inputs is a dynamic length; leave it out."
            )
        return (None,)
    chosen = asked or _default_lengths(axes.interface, axes.tokens, data)
    _check_range("tokens", axes.tokens, chosen, axes)
    if data is not None and data.tokens is not None and max(chosen) > data.tokens:
        raise InputError(
            f"tokens={_listed(chosen)}, but the data has {data.tokens} on the axis "
            f"{axes.tokens}; choose smaller ones, or pass longer data."
        )
    return chosen


def _default_lengths(interface: Interface, axis: str, data: Configuration | None) -> tuple[int, ...]:
    if data is not None and data.tokens is not None:
        return (data.tokens,)
    least, limit = interface.least(axis), interface.limit(axis)
    if limit is None:
        return (max(least, UNKNOWN_LENGTH),)
    largest = max(least, min(limit, LONGEST_BY_DEFAULT))
    return tuple(sorted({max(least, largest // divisor) for divisor in (16, 4, 1)}))


def _check_range(argument: str, name: str, sizes: tuple[int, ...], axes: DynamicAxes) -> None:
    wrong = [size for size in sizes if not axes.interface.takes(name, size)]
    if wrong:
        least, limit = axes.interface.least(name), axes.interface.limit(name)
        allowed = f"{least} or more" if limit is None else f"{least} to {limit}"
        raise InputError(f"{argument}={_listed(wrong)}, but the model's axis {name} takes {allowed}.")


def _listed(sizes: Sequence[int]) -> str:
    return repr(",".join(map(str, sizes)))
