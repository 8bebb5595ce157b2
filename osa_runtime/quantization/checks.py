"""Checks after quantising, whatever the quantiser did: functions, core, interface, kernels, stored types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import onnx

from osa_runtime.errors import ExportError
from osa_runtime.inspection.kernel_coverage import NOWHERE, expand, place
from osa_runtime.manifest import AttentionCall
from osa_runtime.onnx_files import input_specs, output_specs, read_onnx, readable_errors
from osa_runtime.quantization.selection import Selection, between
from osa_runtime.runtime.kernels import list_kernels

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
    found = between(model, set(call.inputs), call.output)
    return Counter(_content(model.graph.node[index]).SerializeToString(deterministic=True) for index in found)


def _content(node: onnx.NodeProto) -> onnx.NodeProto:
    """The content without name, order of attributes, and the types that shape inference writes into If and Loop."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = ""
    copy.attribute.sort(key=lambda attribute: attribute.name)
    for attribute in copy.attribute:
        for body in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            del body.value_info[:]
            for value in (*body.input, *body.output):
                value.ClearField("type")
            for inner in body.node:
                inner.CopyFrom(_content(inner))
    return copy


def _said(specs: Sequence[object]) -> str:
    return ", ".join(map(str, specs))


def _changed(what: str) -> ExportError:
    return ExportError(
        f"Quantising changed more than it should: {what}. Nothing was written. Please report this, with the versions "
        "that `osa doctor` shows."
    )
