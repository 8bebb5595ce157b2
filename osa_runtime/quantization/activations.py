"""8-bit products: examples to measure the ranges of activations, and ONNX Runtime's quantiser for the chosen nodes."""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from osa_runtime.arrays import read_arrays
from osa_runtime.artifact import Artifact, sha256
from osa_runtime.errors import ExportError, InputError
from osa_runtime.interface import TensorSpec
from osa_runtime.manifest import CalibrationRecord
from osa_runtime.onnx_files import bodies, free_name, reads
from osa_runtime.quantization.weights import PRODUCTS
from osa_runtime.runtime.input_checks import check_finite_inputs, check_inputs
from osa_runtime.steps import quiet

Array = NDArray[Any]
Feeds = dict[str, Array]

LEAST_EXAMPLES = 16
ROWS = 32  # in one run, if the model takes any number


@dataclass(frozen=True)
class Calibration:
    feeds: tuple[Feeds, ...]
    examples: int
    sha256: str

    def describe(self) -> CalibrationRecord:
        """The entry of the manifest; ``ranges`` are the limits beyond which a static model was never tested."""
        floats = {name for name, array in self.feeds[0].items() if array.dtype.kind == "f"}
        found = {name: [portion[name] for portion in self.feeds] for name in sorted(floats)}
        ranges: dict[str, tuple[float, ...]] = {
            n: (float(min(map(np.min, part))), float(max(map(np.max, part)))) for n, part in found.items()
        }
        return CalibrationRecord(self.examples, self.sha256, ranges)


def read_calibration(path: Path, artifact: Artifact) -> Calibration:
    """Read an .npz with an array for each input of the model, the examples along its first axis."""
    if not path.is_file():
        raise InputError(f"calibration={path}: there is no such file.")
    content, specs = read_arrays(path), artifact.manifest.inputs
    if not isinstance(content, Mapping):
        names = ", ".join(f"{spec.name}=…" for spec in specs)
        raise InputError(f"{path} holds one array without a name; write it with numpy.savez({path.stem!r}, {names}).")
    interface = artifact.manifest.interface
    feeds = _in_portions(path, content, artifact)
    try:
        for portion in feeds:
            check_inputs(portion, interface)
        check_finite_inputs(content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    examples = min((len(content[spec.name]) for spec in specs), default=0)
    if examples < LEAST_EXAMPLES:
        raise InputError(
            f"{path} holds {examples} examples, expected {LEAST_EXAMPLES} or more: ranges from so few are too narrow. "
            "A few hundred that look like what the model will see are a good choice."
        )
    _check_values(path, content)
    return Calibration(feeds, examples, sha256(path))


def _in_portions(path: Path, content: Mapping[str, Array], artifact: Artifact) -> tuple[Feeds, ...]:
    """Split the arrays; those that are not inputs or have no axis go unchanged to the checks, which report them."""
    specs = {spec.name: spec for spec in artifact.manifest.inputs}
    if set(content) != set(specs) or any(array.ndim == 0 for array in content.values()):
        return (dict(content),)
    steps = {name: _step(specs[name], array, artifact) for name, array in content.items()}
    counts = {name: len(array) for name, array in content.items()}
    portions = {math.ceil(counts[name] / step) for name, step in steps.items()}
    if len(portions) != 1 or len({counts[n] for n, step in steps.items() if step == ROWS}) > 1:
        said = ", ".join(f"{count} of {name}" for name, count in counts.items())
        raise InputError(f"{path} holds {said}; expected as many examples of every input.")
    for name, count in counts.items():
        if steps[name] != ROWS and count % steps[name]:
            raise InputError(
                f"{path} holds {count} examples of {name}, but the model takes exactly {steps[name]} at a time; "
                "pass a multiple of that."
            )
    return tuple(
        {name: array[i * steps[name] : (i + 1) * steps[name]] for name, array in content.items()}
        for i in range(next(iter(portions)))
    )


def _step(spec: TensorSpec, array: Array, artifact: Artifact) -> int:
    first = spec.shape[0] if spec.shape else 1
    if isinstance(first, int):
        return max(1, first)
    interface = artifact.manifest.interface
    return interface.fitting(first, ROWS) if first == interface.batch else max(1, len(array))


def _check_values(path: Path, content: Mapping[str, Array]) -> None:
    for name, array in content.items():
        if array.dtype.kind == "f" and np.ptp(array) == 0:
            raise InputError(f"{path}: every value of {name} is {array.flat[0]}; expected examples of real inputs.")


def quantize_dynamic(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """Quantise with ranges of activations that are measured in every run, over the whole batch."""
    from onnxruntime import quantization

    products = [*names, *(f"{name}_MatMul" for name in names)]  # what it first turns a Gemm into, before an Add

    def write(path: Path) -> None:
        options = {"nodes_to_quantize": products, "use_external_data_format": True} | _shared()
        quantization.quantize_dynamic(ready(model), path, **options)

    return _rewritten(model, write)


def quantize_static(model: onnx.ModelProto, names: Sequence[str], ranges: Ranges) -> onnx.ModelProto:
    """Quantise with a fixed range for each activation; values beyond it are cut off."""
    from onnxruntime.quantization import QDQQuantizer, QuantType

    shared = _shared()

    def write(path: Path) -> None:
        # As ONNX Runtime's quantize_static, except for the calibration: ranges can be given.
        quantizer = QDQQuantizer(
            ready(model),
            shared["per_channel"],
            shared["reduce_range"],
            shared["weight_type"],
            QuantType.QUInt8,
            tensors_data(ranges),
            list(names),
            [],
            shared["op_types_to_quantize"],
            # The results stay in float32: the inputs of attention, and sums over several layers, are not rounded again.
            {"MatMulConstBOnly": True, "OpTypesToExcludeOutputQuantization": list(PRODUCTS)},
        )
        quantizer.quantize_model()
        quantizer.model.save_model_to_file(path, True)

    return _rewritten(model, write)


def _shared() -> dict[str, Any]:
    from onnxruntime.quantization import QuantType

    return {
        "op_types_to_quantize": list(PRODUCTS),
        "weight_type": QuantType.QInt8,
        "per_channel": True,
        "reduce_range": True,  # 7 bits, for the reason in QuantizeSettings.weight_bits
    }


def _rewritten(model: onnx.ModelProto, write: Any) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory(prefix="osa-quantize-") as folder, quiet():
        path = Path(folder) / "quantized.onnx"
        write(path)
        result = onnx.load(path)
    del result.metadata_props[:]
    result.metadata_props.extend(model.metadata_props)
    result.producer_name, result.producer_version = model.producer_name, model.producer_version
    _name_new_nodes(result, {node.name for node in model.graph.node})
    # The quantiser infers all shapes; in a small model they would be most of the file.
    made = {name for node in result.graph.node for name in node.output}
    _forget_shapes(result.graph)
    result.graph.value_info.extend(value for value in model.graph.value_info if value.name in made)
    return result


def _forget_shapes(graph: onnx.GraphProto) -> None:
    del graph.value_info[:]
    for body in (body for node in graph.node for body in bodies(node)):
        _forget_shapes(body)


def _name_new_nodes(model: onnx.ModelProto, known: set[str]) -> None:
    """Name the nodes that the quantiser put around a product after the product's part, which is found by name."""
    readers: dict[str, onnx.NodeProto] = {}
    taken = {node.name for node in model.graph.node}
    for node in reversed(model.graph.node):
        if node.name not in known:
            node.name = free_name(f"{_owner(node, readers)}/{node.op_type}".lstrip("/"), taken)
        readers |= dict.fromkeys(reads(node), node)


def _owner(node: onnx.NodeProto, readers: Mapping[str, onnx.NodeProto]) -> str:
    """The part of a node: a product's name holds it; other nodes belong to the part of their reader."""
    if node.op_type in ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast"):
        reader = next((readers[name] for name in node.output if name in readers), node)
        return reader.name.rpartition("/")[0]
    return node.name.rpartition("/")[0]


Ranges = dict[str, list[float]]  # by activation: the least and the largest value, numbers of float32


def measure_ranges(model: onnx.ModelProto, names: Sequence[str], feeds: Sequence[Mapping[str, Array]]) -> Ranges:
    """The ranges of the activations that these products read, on the calibration feeds."""
    from onnxruntime.quantization import create_calibrator

    with tempfile.TemporaryDirectory(prefix="osa-calibrate-") as folder, quiet():
        path, observed = Path(folder) / "model.onnx", Path(folder) / "observed.onnx"
        onnx.save(ready(model), path, save_as_external_data=True)
        calibrator = create_calibrator(path, list(PRODUCTS), str(observed), use_external_data_format=True)
        rest = map(dict, feeds)
        calibrator.collect_data(SimpleNamespace(get_next=lambda: next(rest, None)))
        found = calibrator.compute_data()
    read = _activations(model, names)
    if unknown := [name for name in read if name not in found]:
        raise ExportError(f"{unknown[0]} has no type in the graph, so its range is unknown; export the model again.")
    return {name: [float(value.item()) for value in found[name].range_value] for name in read}


def check_ranges(model: onnx.ModelProto, names: Sequence[str], ranges: object) -> Ranges:
    """Check recorded ranges: there is one for each activation, and no other."""
    read = _activations(model, names)
    if not isinstance(ranges, Mapping) or set(ranges) != set(read):
        given = ", ".join(map(str, ranges)) if isinstance(ranges, Mapping) else repr(ranges)
        raise InputError(f"ranges are of {given or 'nothing'}, expected one for each of {', '.join(read)}.")
    for name in read:
        if not _is_range(ranges[name]):
            raise InputError(f"ranges: that of {name} is {ranges[name]!r}, expected [least, largest] of float32.")
    return {name: list(ranges[name]) for name in read}


def tensors_data(ranges: Ranges) -> Any:
    """The ranges in the form that ONNX Runtime's quantiser takes."""
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import TensorsData

    pairs = {name: tuple(np.array(value, np.float32) for value in pair) for name, pair in ranges.items()}
    return TensorsData(CalibrationMethod.MinMax, pairs)


def ready(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without the shapes of weights: the quantiser transposes some weights and keeps the old shapes."""
    result = copy.deepcopy(model)
    weights = {tensor.name for tensor in model.graph.initializer}
    del result.graph.value_info[:]
    result.graph.value_info.extend(value for value in model.graph.value_info if value.name not in weights)
    return result


def _activations(model: onnx.ModelProto, names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(node.input[0] for node in model.graph.node if node.name in names))


def _is_range(pair: object) -> bool:
    if not (isinstance(pair, Sequence) and len(pair) == 2 and all(type(value) is float for value in pair)):
        return False
    exact = all(math.isfinite(value) and float(np.float32(value)) == value for value in pair)
    return exact and pair[0] <= pair[1]
