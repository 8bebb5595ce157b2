"""The configurations that are measured, each with its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from osa_runtime.benchmarking.configurations import Configuration, configurations, dynamic_axes
from osa_runtime.benchmarking.feeds import data_sizes, describe_random, fit_data, random_feeds
from osa_runtime.benchmarking.request import Request
from osa_runtime.runtime.session import Session

Case = tuple[Configuration, Mapping[str, NDArray[Any]]]


def build_cases(session: Session, request: Request) -> tuple[list[Case], str, list[str]]:
    """The cases, what the models are fed, and notes on it."""
    specs = session.inputs
    axes = dynamic_axes(specs, session.axes)
    if request.read_data is None:
        chosen = configurations(axes, request.batches, request.tokens)
        ids = session.manifest.values if session.manifest else {}
        cases: list[Case] = [(c, random_feeds(specs, axes, c, request.seed, ids)) for c in chosen]
        return cases, f"seeded random data ({describe_random(specs, ids)})", []
    data, notes = request.read_data(session)
    chosen = configurations(axes, request.batches, request.tokens, data_sizes(data, specs, axes))
    fitted: list[Case] = [(c, fit_data(data, specs, axes, c)) for c in chosen]
    return fitted, "the given data, its rows repeated or cut to the batch", notes
