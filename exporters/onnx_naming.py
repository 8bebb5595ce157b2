"""Readable graphs: names that follow the module tree, and nothing of the exporting machine."""

from __future__ import annotations

import ast
from collections import Counter

import onnx_ir as ir

SCOPES = "pkg.torch.onnx.name_scopes"


def rename(model: ir.Model, outputs: tuple[str, ...]) -> None:
    """Name nodes and values ``module/path/Operator``, drop the tracer's metadata (it holds paths of source files)."""
    for value, name in zip(model.graph.outputs, outputs, strict=True):
        value.name = name
    keep = {id(value) for value in model.graph.outputs}
    seen: Counter[str] = Counter()
    for node in model.graph:
        base = f"{_path(node)}{node.op_type}"
        seen[base] += 1
        node.name = base if seen[base] == 1 else f"{base}_{seen[base]}"
        for index, value in enumerate(node.outputs):
            if id(value) not in keep:
                value.name = node.name if index == 0 else f"{node.name}.{index}"
            value.metadata_props.clear()
        node.metadata_props.clear()
        node.doc_string = None
    _name_initializers(model)
    for value in [*model.graph.inputs, *model.graph.initializers.values()]:
        value.metadata_props.clear()
    model.metadata_props.clear()
    model.graph.metadata_props.clear()


def _name_initializers(model: ir.Model) -> None:
    """Constants that the optimiser made are named after the node that reads them first: ``module/MatMul.weight``."""
    for value in list(model.graph.initializers.values()):
        uses, old = list(value.uses()), value.name or ""
        if "." in old or not uses:
            continue
        node, index = uses[0]
        kind = "weight" if node.op_type in ("MatMul", "Gemm") else f"constant_{index}"
        name = f"{node.name}.{kind}"
        if name not in model.graph.initializers:
            del model.graph.initializers[old]
            value.name = name
            model.graph.initializers[name] = value


def _path(node: ir.Node) -> str:
    """``stack.blocks.0.attention/`` from the tracer's list of scopes; the last one names the operation itself."""
    scopes = ast.literal_eval(node.metadata_props.get(SCOPES, "[]"))
    modules = [scope for scope in scopes[:-1] if scope and not scope.startswith("_")]
    return f"{modules[-1]}/" if modules else ""
