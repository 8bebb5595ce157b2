"""The configurations with their inputs: seeded random arrays, or the caller's data fitted to a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.benchmarking.configurations import Configuration, DynamicAxes, configurations
from osa_runtime.benchmarking.settings import BenchmarkSettings
from osa_runtime.errors import InputError
from osa_runtime.interface import ANY_SHAPE, Interface, TensorSpec
from osa_runtime.runtime.session import Session
from osa_runtime.sample_inputs import sample_inputs

Array = NDArray[Any]
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
