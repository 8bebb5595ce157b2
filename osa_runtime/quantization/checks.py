"""Checks of any quantised model, and the deviation of the outputs from the source."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from osa_runtime.errors import ExportError, RunError
from osa_runtime.inspection.kernel_coverage import NOWHERE, expand, place
from osa_runtime.manifest import AttentionCall, Manifest
from osa_runtime.onnx_files import bodies, input_specs, output_specs, read_onnx, readable_errors
from osa_runtime.parity.comparison import Metrics, measure
from osa_runtime.parity.feeds import all_sizes
from osa_runtime.quantization.weights import Selection, core_nodes
from osa_runtime.runtime.kernels import list_kernels
from osa_runtime.runtime.session import Session
from osa_runtime.sample_inputs import sample_inputs

INTEGERS = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)


def check_rewriting(
    before: onnx.ModelProto, after: onnx.ModelProto, selection: Selection, attentions: Sequence[AttentionCall]
) -> None:
    for kind, specs in (("inputs", input_specs), ("outputs", output_specs)):
        if specs(before) != specs(after):
            raise _changed(f"the {kind} are {_said(specs(after))}, and were {_said(specs(before))}")
    if _bodies(before) != _bodies(after):
        raise _changed("the functions of orthogonal attention changed")
    for call in attentions:
        if _core(before, call) != _core(after, call):
            raise _changed(f"the orthogonal attention {call.name} changed")
    stored = sum(t.data_type in INTEGERS and len(t.dims) == 2 for t in after.graph.initializer)
    wanted = len(selection.products) + len(selection.tables)
    if stored != wanted:
        raise _changed(f"{stored} weights are stored in 8 bits, and should be {wanted}")


def check_file(path: Path) -> None:
    """Check the file by onnx with strict shape inference, and for a CPU kernel of ONNX Runtime for every node."""
    with readable_errors(path):
        onnx.checker.check_model(str(path), full_check=True)
        expanded = expand(read_onnx(path))
    cpu = list_kernels("cpu")
    missing = [gap.operator for gap in place(expanded, cpu, cpu).gaps if gap.consequence == NOWHERE]
    if missing:
        raise _changed(f"ONNX Runtime has no kernel for {', '.join(missing)}")


def _bodies(model: onnx.ModelProto) -> Counter[bytes]:
    return Counter(function.SerializeToString(deterministic=True) for function in model.functions)


def _core(model: onnx.ModelProto, call: AttentionCall) -> Counter[bytes]:
    """The nodes between a call's inputs and its output, by content."""
    return Counter(
        _content(model.graph.node[index]).SerializeToString(deterministic=True) for index in core_nodes(model, [call])
    )


def _content(node: onnx.NodeProto) -> onnx.NodeProto:
    """The content without name, order of attributes, and the types that shape inference writes into If and Loop."""
    result = copy.deepcopy(node)
    result.name = ""
    result.attribute.sort(key=lambda attribute: attribute.name)
    for body in bodies(result):
        del body.value_info[:]
        for value in (*body.input, *body.output):
            value.ClearField("type")
        for inner in body.node:
            inner.CopyFrom(_content(inner))
    return result


def _said(specs: Sequence[object]) -> str:
    return ", ".join(map(str, specs))


def _changed(what: str) -> ExportError:
    return ExportError(
        f"Quantising changed more than it should: {what}. Nothing was written. Please report this, with the versions "
        "that `osa doctor` shows."
    )


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
    return {name: _measure(name, found) for name, found in pairs.items() if found[0][0].dtype.kind == "f"}


def _check_finite(name: str, values: Array) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ExportError(
            f"The quantised model returns NaN or Inf in {name} where its source does not; nothing was written. "
            "Keep parts of it in float32 with keep=…, or export it with `osa export --squarings auto`."
        )


def _rows(values: Array) -> Array:
    """The values as rows of the last axis, since lengths differ from run to run."""
    return values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)


def _measure(name: str, pairs: list[tuple[Array, Array]]) -> Metrics:
    widths = {actual.shape[-1] for actual, _ in pairs}
    if len(widths) > 1:
        pairs = [(actual.reshape(-1, 1), expected.reshape(-1, 1)) for actual, expected in pairs]
    actual, expected = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return measure(actual, expected, classes=name == "logits")
