"""The settings of a benchmark, its batches and lengths, and their inputs: random, or the caller's data fitted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.benchmarking.timing import Schedule
from osa_runtime.environment import usable_cores
from osa_runtime.errors import InputError
from osa_runtime.interface import ANY_SHAPE, Interface, TensorSpec
from osa_runtime.runtime.session import Session
from osa_runtime.sample_inputs import sample_inputs

Array = NDArray[Any]
# The caller's arrays by input name, and notes on them, for a model.
ReadData = Callable[[Session], tuple[Mapping[str, Array], list[str]]]


@dataclass(frozen=True)
class BenchmarkSettings:
    """``against`` is a checkpoint to compare with; ONNX Runtime's trace of the nodes is written to ``trace``."""

    artifact: Path
    against: Path | None = None
    batches: tuple[int, ...] | None = None
    tokens: tuple[int, ...] | None = None
    schedule: Schedule = field(default_factory=Schedule)
    threads: int = field(default_factory=usable_cores)
    device: str = "cpu"
    seed: int = 0
    read_data: ReadData | None = None
    memory: bool = True
    trace: Path | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "batches": self.batches,
            "tokens": self.tokens,
            **asdict(self.schedule),
            "threads": self.threads,
            "device": self.device,
            "seed": self.seed,
        }


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


Feeds = dict[str, Array]
FedConfiguration = tuple[Configuration, Mapping[str, Array]]

REAL_DATA = "pass real arrays"


def build_cases(session: Session, settings: BenchmarkSettings) -> tuple[list[FedConfiguration], str, list[str]]:
    """The configurations with their inputs, a description of the inputs, and notes on them."""
    axes = DynamicAxes(session.interface)
    if settings.read_data is None:
        chosen = configurations(axes, settings.batches, settings.tokens)
        cases: list[FedConfiguration] = [(c, random_feeds(axes, c, settings.seed)) for c in chosen]
        return cases, f"seeded random data ({describe_random(session.interface)})", []
    data, notes = settings.read_data(session)
    chosen = configurations(axes, settings.batches, settings.tokens, data_sizes(data, axes))
    fitted: list[FedConfiguration] = [(c, fit_data(data, axes, c)) for c in chosen]
    return fitted, "the given data, its rows repeated or cut to the batch", notes


def random_feeds(axes: DynamicAxes, configuration: Configuration, seed: int) -> Feeds:
    unknown = [spec.name for spec in axes.interface.inputs if spec.shape == ANY_SHAPE]
    if unknown:
        raise InputError(
            f"The model file has neither type nor shape of {', '.join(unknown)}; "
            f"measure the exported folder instead, or {REAL_DATA}."
        )
    if axes.others:
        raise InputError(f"The model has more dynamic axes ({', '.join(axes.others)}), of unknown size; {REAL_DATA}.")
    return sample_inputs(axes.interface, axes.sizes(configuration), seed=seed)


def describe_random(interface: Interface) -> str:
    kinds = {"f": "standard normal", "b": "all true"}
    whole = {spec.name: "ids {} to {}".format(*interface.ids(spec.name)) for spec in interface.inputs}
    return ", ".join(
        f"{spec.name}: {kinds.get(np.dtype(spec.dtype).kind, whole[spec.name])}" for spec in interface.inputs
    )


def data_sizes(data: Mapping[str, Array], axes: DynamicAxes) -> Configuration:
    """The batch and the length that the caller's arrays have."""
    sizes = axes.interface.sizes(data)
    first = next((array for array in data.values() if array.ndim), None)
    batch = sizes.get(axes.batch or "", len(first) if first is not None else 1)
    if batch < 1:
        raise InputError("The data has no rows; expected at least one.")
    return Configuration(batch, sizes.get(axes.tokens or ""))


def fit_data(data: Mapping[str, Array], axes: DynamicAxes, configuration: Configuration) -> Feeds:
    """The caller's arrays with their rows repeated or cut to the batch, and their tokens cut to the length."""
    by_name = {spec.name: spec for spec in axes.interface.inputs}
    return {name: _fitted(array, by_name.get(name), axes, configuration) for name, array in data.items()}


def _fitted(array: Array, spec: TensorSpec | None, axes: DynamicAxes, configuration: Configuration) -> Array:
    if spec is None or array.ndim == 0:
        return array  # the session reports what is wrong with it
    if spec.shape == ANY_SHAPE or spec.shape[:1] == (axes.fixed_batch,):
        array = _repeat(array, 0, configuration.batch)
    for place, name in enumerate(spec.shape if array.ndim == len(spec.shape) else ()):
        if name == axes.batch:
            array = _repeat(array, place, configuration.batch)
        elif name == axes.tokens and configuration.tokens is not None:
            array = array[(slice(None),) * place + (slice(configuration.tokens),)]
    return np.ascontiguousarray(array)


def _repeat(array: Array, place: int, rows: int) -> Array:
    size = array.shape[place]
    return np.take(array, np.arange(rows) % size, place) if size else array
