"""Replace a Loop with a known number of trips by its body written out, for runtimes without Loop."""

from __future__ import annotations

import onnx


def unroll_loop(function: onnx.FunctionProto, trips: int) -> onnx.FunctionProto:
    """The function with its one Loop (carried values only, no scan outputs, no early end) unrolled ``trips`` times."""
    loops = [node for node in function.node if node.op_type == "Loop"]
    assert len(loops) == 1, f"{function.name} has {len(loops)} loops, expected one"
    loop, body = loops[0], loops[0].attribute[0].g
    result = onnx.FunctionProto()
    result.CopyFrom(function)
    del result.node[:]
    for node in function.node:
        if node is loop:
            result.node.extend(_written_out(loop, body, trips))
        else:
            result.node.append(node)
    _remove_unused(result)
    read = {name for node in result.node for name in node.input} & {value.name for value in body.input[:2]}
    assert not read, f"{function.name} reads {sorted(read)}, which are no more: the trip or the condition of its loop"
    return result


def _written_out(loop: onnx.NodeProto, body: onnx.GraphProto, trips: int) -> list[onnx.NodeProto]:
    carried_in = [value.name for value in body.input[2:]]
    carried_out = [value.name for value in body.output[1:]]
    current, nodes = list(loop.input[2:]), []
    for trip in range(trips):
        names = dict(zip(carried_in, current, strict=True))
        for node in body.node:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.input[:] = [names.get(name, name) for name in node.input]
            for name in node.output:
                names[name] = f"{name}_step{trip + 1}"
            copy.output[:] = [names[name] for name in node.output]
            nodes.append(copy)
        current = [names[name] for name in carried_out]
    return nodes + [
        onnx.helper.make_node("Identity", [value], [name]) for value, name in zip(current, loop.output, strict=True)
    ]


def _remove_unused(function: onnx.FunctionProto) -> None:
    """Drop nodes whose outputs are not read, such as the trip count, conditions and the last update of a value."""
    while True:
        used = set(function.output) | {name for node in function.node for name in node.input}
        kept = [node for node in function.node if used & set(node.output)]
        if len(kept) == len(function.node):
            return
        del function.node[:]
        function.node.extend(kept)
