"""The range of each activation that static products round: measured on examples, or as a manifest records it."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from osa_runtime.errors import ExportError, InputError
from osa_runtime.exporters.quantization.selection import PRODUCTS
from osa_runtime.exporters.quiet import quiet

Feeds = Mapping[str, NDArray[Any]]
Ranges = dict[str, list[float]]  # by activation: the least and the largest value, numbers of float32


def measure_ranges(model: onnx.ModelProto, names: Sequence[str], feeds: Sequence[Feeds]) -> Ranges:
    """What the activations that these products read have been with the calibration feeds."""
    from onnxruntime.quantization import create_calibrator

    with tempfile.TemporaryDirectory(prefix="osa-calibrate-") as folder, quiet():
        path, observed = Path(folder) / "model.onnx", Path(folder) / "observed.onnx"
        onnx.save(ready(model), path, save_as_external_data=True)
        calibrator = create_calibrator(path, list(PRODUCTS), str(observed), use_external_data_format=True)
        calibrator.collect_data(_reader(feeds))
        found = calibrator.compute_data()
    read = _activations(model, names)
    if unknown := [name for name in read if name not in found]:
        raise ExportError(f"{unknown[0]} has no type in the graph, so its range is unknown; export the model again.")
    return {name: [float(value.item()) for value in found[name].range_value] for name in read}


def check_ranges(model: onnx.ModelProto, names: Sequence[str], ranges: object) -> Ranges:
    """Of recorded ranges: there is one for each activation, and no other."""
    read = _activations(model, names)
    if not isinstance(ranges, Mapping) or set(ranges) != set(read):
        given = ", ".join(map(str, ranges)) if isinstance(ranges, Mapping) else repr(ranges)
        raise InputError(f"ranges are of {given or 'nothing'}, expected one for each of {', '.join(read)}.")
    for name in read:
        if not _is_range(ranges[name]):
            raise InputError(f"ranges: that of {name} is {ranges[name]!r}, expected [least, largest] of float32.")
    return {name: list(ranges[name]) for name in read}


def tensors_data(ranges: Ranges) -> Any:
    """As ONNX Runtime's quantiser takes them."""
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import TensorsData

    pairs = {name: tuple(np.array(value, np.float32) for value in pair) for name, pair in ranges.items()}
    return TensorsData(CalibrationMethod.MinMax, pairs)


def ready(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without the shapes of weights: the quantiser transposes some of them, and would contradict itself."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    weights = {tensor.name for tensor in copy.graph.initializer}
    values = [value for value in copy.graph.value_info if value.name not in weights]
    del copy.graph.value_info[:]
    copy.graph.value_info.extend(values)
    return copy


def _activations(model: onnx.ModelProto, names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(node.input[0] for node in model.graph.node if node.name in names))


def _is_range(pair: object) -> bool:
    if not (isinstance(pair, Sequence) and len(pair) == 2 and all(type(value) is float for value in pair)):
        return False
    exact = all(math.isfinite(value) and float(np.float32(value)) == value for value in pair)
    return exact and pair[0] <= pair[1]


def _reader(feeds: Sequence[Feeds]) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # ONNX Runtime has no types
        def __init__(self) -> None:
            self._feeds = iter(feeds)

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            found = next(self._feeds, None)
            return None if found is None else dict(found)

    return Reader()
