"""The distance of a quantised model from its source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.artifact import Manifest
from osa_runtime.errors import ExportError, RunError
from osa_runtime.parity.feeds import all_sizes
from osa_runtime.parity.metrics import Metrics, measure
from osa_runtime.runtime.session import Session
from osa_runtime.sample_inputs import sample_inputs

Array = NDArray[Any]
Feeds = Mapping[str, Array]

SEED = 0
ROWS = 32


def random_feeds(manifest: Manifest) -> list[dict[str, Array]]:
    """Random inputs at every size of a sweep, with padding if there is a mask, and once with many rows."""
    interface = manifest.interface
    sizes = all_sizes(interface, None, None, None)
    if interface.batch is not None:
        sizes.append(sizes[len(sizes) // 2] | {interface.batch: interface.fitting(interface.batch, ROWS)})
    feeds = [sample_inputs(interface, chosen, seed=SEED + index) for index, chosen in enumerate(sizes)]
    return feeds + ([sample_inputs(interface, sizes[-1], "padded", SEED)] if interface.mask is not None else [])


def deviation(quantized: Session, source: Session, feeds: Iterable[Feeds], *, given: bool) -> dict[str, Metrics]:
    """The deviation by output. ``given`` inputs must have finite answers; random ones may be beyond a fixed number of
    squarings, where NaN is the right answer of both."""
    pairs: dict[str, list[tuple[Array, Array]]] = {}
    for inputs in feeds:
        try:
            expected = source.run(inputs, check_finite=True)
        except RunError:
            if given:
                raise
            continue
        actual = quantized.run(inputs)
        for name, values in actual.items():
            _check_finite(name, values)
            pairs.setdefault(name, []).append((_rows(values), _rows(expected[name])))
    return {name: _measure(name, found) for name, found in pairs.items() if _is_float(found)}


def _check_finite(name: str, values: Array) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ExportError(
            f"The quantised model returns NaN or Inf in {name} where its source does not; nothing was written. "
            "Keep parts of it in float32 with keep=…, or export it with `osa export --squarings auto`."
        )


def _rows(values: Array) -> Array:
    """The values as rows of the last axis, since lengths differ from run to run."""
    return values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)


def _is_float(pairs: list[tuple[Array, Array]]) -> bool:
    return pairs[0][0].dtype.kind == "f"


def _measure(name: str, pairs: list[tuple[Array, Array]]) -> Metrics:
    widths = {actual.shape[-1] for actual, _ in pairs}
    if len(widths) > 1:
        pairs = [(actual.reshape(-1, 1), expected.reshape(-1, 1)) for actual, expected in pairs]
    actual, expected = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return measure(actual, expected, classes=name == "logits")
