"""Ways to break an exported model so that it still loads, and signs as if nothing had happened."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from osa_runtime.artifact import MANIFEST_FILE, describe_files
from osa_runtime.onnx_files import bodies, with_inner


def broken_onnx(artifact: Path, out: Path, breaking: Callable[[onnx.ModelProto], None]) -> Path:
    """A copy of the artifact with a changed graph, whose manifest has the hash of the changed file."""
    shutil.copytree(artifact, out)
    model = onnx.load(out / "model.onnx")
    breaking(model)
    onnx.save(model, out / "model.onnx")
    return signed(out)


def broken_torchscript(artifact: Path, out: Path, breaking: Callable[[torch.nn.Module], None]) -> Path:
    shutil.copytree(artifact, out)
    module = torch.jit.load(out / "model.pt")
    with torch.no_grad():
        breaking(module)
    torch.jit.save(module, out / "model.pt")
    return signed(out)


def broken_pt2(
    artifact: Path, out: Path, breaking: Callable[[dict[str, torch.Tensor]], None], *, constants: bool = False
) -> Path:
    """``breaking`` gets the weights; with ``constants`` also the buffers that no checkpoint holds."""
    shutil.copytree(artifact, out)
    program = torch.export.load(out / "model.pt2")
    with torch.no_grad():
        breaking(program.state_dict | program.constants if constants else program.state_dict)
    torch.export.save(program, out / "model.pt2")
    return signed(out)


def signed(folder: Path, **changes: Any) -> Path:
    path = folder / MANIFEST_FILE
    manifest = json.loads(path.read_text())
    manifest["files"] = {name: dataclasses.asdict(entry) for name, entry in describe_files(folder).items()}
    path.write_text(json.dumps(manifest | changes))
    return folder


def insert(model: onnx.ModelProto, value: str, text: str) -> None:
    """Put operators (in the textual form of ONNX, from x to y) between a value and all who read it.

    They may read the inputs of the graph by name.
    """
    graph = onnx.parser.parse_graph(f"inserted (float x) => (float y) {{ {text} }}")
    outside = {one.name for one in model.graph.input}
    names = {"": "", "x": f"{value}/before", "y": value}
    place = next(i for i, node in enumerate(model.graph.node) if value in node.output)
    maker = model.graph.node[place]
    maker.output[:] = [names["x"] if name == value else name for name in maker.output]
    for offset, node in enumerate(graph.node, 1):
        for fields in (node.input, node.output):
            fields[:] = [names.get(name, name if name in outside else f"{value}/{name}") for name in fields]
        model.graph.node.insert(place + offset, node)


def change_weight(model: onnx.ModelProto, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == name)
    array = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(np.array(change(array.copy()), array.dtype, order="C"), name))


def perturb(array: np.ndarray) -> np.ndarray:
    array[1, 2] += 1e-3
    return array


def poison(array: np.ndarray) -> np.ndarray:
    array[0, 0] = np.nan
    return array


def double_scale(model: onnx.ModelProto, layer: str) -> None:
    """Of one layer only: layers may share the constant."""
    node = next(n for n in model.graph.node if n.name == f"{layer}/OrthogonalAttention")
    tensor = next(t for t in model.graph.initializer if t.name == node.input[3])
    model.graph.initializer.append(numpy_helper.from_array(2 * numpy_helper.to_array(tensor), "doubled"))
    node.input[3] = "doubled"


def drop_squaring(model: onnx.ModelProto) -> None:
    """One doubling fewer than the scaling divided by. A stays orthogonal, but it is exp(S/2)."""
    change_trips(model, 1, "Sub")


def change_trips(model: onnx.ModelProto, products: int, operator: str, number: int = 1) -> None:
    """Another number of trips for the first Loop of a function with so many products in its body."""
    for function in model.functions:
        for nodes in (function.node, *(graph.node for node in with_inner(function.node) for graph in bodies(node))):
            for place, loop in enumerate(nodes):
                body = [inner.op_type for inner in loop.attribute[0].g.node] if loop.op_type == "Loop" else []
                if body.count("MatMul") == products:
                    nodes.insert(place, helper.make_node(operator, [loop.input[0], "number"], ["trips"]))
                    nodes.insert(place, helper.make_node("Constant", [], ["number"], value_int=number))
                    nodes[place + 2].input[0] = "trips"
                    return
    raise AssertionError(f"no function has a Loop of {products} products")


def rename_output(model: onnx.ModelProto, new: str) -> None:
    old = model.graph.output[0].name
    model.graph.output[0].name = new
    for node in model.graph.node:
        node.output[:] = [new if name == old else name for name in node.output]


def fix_batch(model: onnx.ModelProto, size: int) -> None:
    for value in (*model.graph.input, *model.graph.output):
        dimension = value.type.tensor_type.shape.dim[0]
        dimension.ClearField("dim_param")
        dimension.dim_value = size


def overflow(model: onnx.ModelProto, layer: str) -> None:
    """The same function in exact arithmetic (the bias is zero): up before the activation, down after it."""
    change_weight(model, f"{layer}.mlp.expand/MatMul.weight", lambda w: w * 2.0**15)
    change_weight(model, f"{layer}.mlp.contract/MatMul.weight", lambda w: w * 2.0**-15)


def reroute_input(model: onnx.ModelProto, name: str, text: str) -> None:
    """Put operators (from x to y) between an input of the graph and all who read it."""
    for node in model.graph.node:
        node.input[:] = [f"{name}/changed" if one == name else one for one in node.input]
    graph = onnx.parser.parse_graph(f"inserted (bool x) => (bool y) {{ {text} }}")
    names = {"": "", "x": name, "y": f"{name}/changed"}
    for offset, node in enumerate(graph.node):
        for fields in (node.input, node.output):
            fields[:] = [names.get(one, f"{name}/{one}") for one in fields]
        model.graph.node.insert(offset, node)


def constant(model: onnx.ModelProto, name: str, value: object) -> str:
    model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    return name


def before_output(model: onnx.ModelProto, *nodes: onnx.NodeProto) -> None:
    """Nodes that read ``answer``, the logits as they were, and write ``logits``."""
    for found in model.graph.node:
        found.output[:] = ["answer" if name == "logits" else name for name in found.output]
    model.graph.node.extend(nodes)


def clip(model: onnx.ModelProto) -> None:
    low, high = constant(model, "low", np.float32(-20)), constant(model, "high", np.float32(20))
    before_output(model, helper.make_node("Clip", ["answer", low, high], ["logits"]))
