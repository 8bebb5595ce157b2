"""The configurations with their inputs: seeded random arrays, or the caller's data fitted to a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.artifact import TensorSpec
from osa_runtime.benchmarking.configurations import Configuration, DynamicAxes, configurations, dynamic_axes
from osa_runtime.benchmarking.settings import BenchmarkSettings
from osa_runtime.errors import InputError
from osa_runtime.interface import ANY_SHAPE
from osa_runtime.runtime.session import Session

Array = NDArray[Any]
Feeds = dict[str, Array]
FedConfiguration = tuple[Configuration, Mapping[str, Array]]

UNKNOWN_IDS = {"min": 0, "max": 1}  # where no range of ids is known; these two are in nearly every vocabulary
REAL_DATA = "give real arrays"


def build_cases(session: Session, settings: BenchmarkSettings) -> tuple[list[FedConfiguration], str, list[str]]:
    """The configurations with their inputs, a description of the inputs, and notes on them."""
    specs = session.inputs
    axes = dynamic_axes(specs, session.axes)
    if settings.read_data is None:
        chosen = configurations(axes, settings.batches, settings.tokens)
        ids = session.manifest.values if session.manifest else {}
        cases: list[FedConfiguration] = [(c, random_feeds(specs, axes, c, settings.seed, ids)) for c in chosen]
        return cases, f"seeded random data ({describe_random(specs, ids)})", []
    data, notes = settings.read_data(session)
    chosen = configurations(axes, settings.batches, settings.tokens, data_sizes(data, specs, axes))
    fitted: list[FedConfiguration] = [(c, fit_data(data, specs, axes, c)) for c in chosen]
    return fitted, "the given data, its rows repeated or cut to the batch", notes


def random_feeds(
    specs: Sequence[TensorSpec],
    axes: DynamicAxes,
    configuration: Configuration,
    seed: int,
    ids: Mapping[str, Mapping[str, int]],
) -> Feeds:
    """``ids`` has the range of whole numbers that an input may hold, by its name."""
    unknown = [spec.name for spec in specs if spec.shape == ANY_SHAPE]
    if unknown:
        raise InputError(
            f"The model file says neither type nor shape of {', '.join(unknown)}; "
            f"measure the exported folder instead, or {REAL_DATA}."
        )
    if axes.others:
        raise InputError(f"The model has more dynamic axes ({', '.join(axes.others)}), of unknown size; {REAL_DATA}.")
    generator = np.random.default_rng(seed)
    sizes = axes.sizes(configuration)
    shapes = {spec: [sizes.get(str(axis), axis) for axis in spec.shape] for spec in specs}
    try:
        return {spec.name: _random(spec, shape, generator, _id_range(spec, ids)) for spec, shape in shapes.items()}
    except (MemoryError, ValueError) as error:  # ValueError: more bytes than an address has bits for
        raise InputError(
            f"Inputs for {configuration} do not fit into memory ({error}); ask for smaller ones."
        ) from error


def describe_random(specs: Sequence[TensorSpec], ids: Mapping[str, Mapping[str, int]]) -> str:
    kinds = {"f": "standard normal", "b": "all true"}
    whole = {spec.name: "ids {} to {}".format(*_id_range(spec, ids)) for spec in specs}
    return ", ".join(f"{spec.name}: {kinds.get(np.dtype(spec.dtype).kind, whole[spec.name])}" for spec in specs)


def _id_range(spec: TensorSpec, ids: Mapping[str, Mapping[str, int]]) -> tuple[int, int]:
    limits = UNKNOWN_IDS | dict(ids.get(spec.name, {}))
    return limits["min"], max(limits["min"], limits["max"])


def _random(spec: TensorSpec, shape: Sequence[Any], generator: np.random.Generator, ids: tuple[int, int]) -> Array:
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b":
        return np.ones(shape, bool)  # a mask: every token is real
    if dtype.kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    return generator.integers(*ids, shape, dtype=dtype, endpoint=True)


def data_sizes(data: Mapping[str, Array], specs: Sequence[TensorSpec], axes: DynamicAxes) -> Configuration:
    """The batch and the length that the caller's arrays have."""
    sizes = {name: size for spec in specs for name, size in _named(spec, data.get(spec.name))}
    first = next((array for array in data.values() if array.ndim), None)
    batch = sizes.get(axes.batch or "", len(first) if first is not None else 1)
    if batch < 1:
        raise InputError("The data has no rows; expected at least one.")
    return Configuration(batch, sizes.get(axes.tokens or ""))


def fit_data(
    data: Mapping[str, Array], specs: Sequence[TensorSpec], axes: DynamicAxes, configuration: Configuration
) -> Feeds:
    """The caller's arrays with their rows repeated or cut to the batch, and their tokens cut to the length."""
    by_name = {spec.name: spec for spec in specs}
    return {name: _fitted(array, by_name.get(name), axes, configuration) for name, array in data.items()}


def _fitted(array: Array, spec: TensorSpec | None, axes: DynamicAxes, configuration: Configuration) -> Array:
    if spec is None or array.ndim == 0:
        return array  # the session says what is wrong with it
    if spec.shape == ANY_SHAPE or spec.shape[:1] == (axes.fixed_batch,):
        array = _repeat(array, 0, configuration.batch)
    for place, (name, _) in enumerate(_named(spec, array)):
        if name == axes.batch:
            array = _repeat(array, place, configuration.batch)
        elif name == axes.tokens and configuration.tokens is not None:
            array = array[(slice(None),) * place + (slice(configuration.tokens),)]
    return np.ascontiguousarray(array)


def _repeat(array: Array, place: int, rows: int) -> Array:
    size = array.shape[place]
    return np.take(array, np.arange(rows) % size, place) if size else array


def _named(spec: TensorSpec, array: Array | None) -> list[tuple[str, int]]:
    """The sizes of an array by the names of its axes; nothing where they do not fit each other."""
    if array is None or array.ndim != len(spec.shape) or spec.shape == ANY_SHAPE:
        return []
    return [(str(axis), size) for axis, size in zip(spec.shape, array.shape, strict=True)]
