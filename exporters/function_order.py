"""A fixed order and fixed names for the variables of If and Loop, which onnxscript leaves to the hash seed."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from typing import Any

import onnx


def put_in_order(function: onnx.FunctionProto) -> None:
    """Sort the outputs of branches and loops by the name of the variable; number names as they appear; name nodes."""
    _sort_variables(function.node)
    _number_names(function)


def _sort_variables(nodes: Sequence[onnx.NodeProto]) -> None:
    for index, node in enumerate(nodes):
        node.name = f"{node.op_type}_{index}"
        bodies = [attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]
        if bodies:
            names = [_variable(name) for name in node.output]
            assert len(set(names)) == len(names), f"{node.op_type} returns {names}: two variables have the same name"
            order = sorted(range(len(names)), key=names.__getitem__)
            for sequence, lead in _parallel(node, bodies):
                _permute(sequence, lead, order)
        for body in bodies:
            _sort_copies(body)
            _sort_variables(body.node)


def _parallel(node: onnx.NodeProto, bodies: Sequence[onnx.GraphProto]) -> Iterator[tuple[MutableSequence[Any], int]]:
    """All lists parallel to the node's outputs, with the number of entries before the variables in each."""
    yield node.output, 0
    if node.op_type == "Loop":
        yield node.input, 2
        yield bodies[0].input, 2
    for body in bodies:
        yield body.output, 1 if node.op_type == "Loop" else 0


def _permute(sequence: MutableSequence[Any], lead: int, order: Sequence[int]) -> None:
    entries = list(sequence)
    assert len(entries) == lead + len(order), "scan outputs have no order of their own yet"
    copies = copy.deepcopy(entries)  # deleting would empty messages that are still in the list
    del sequence[:]
    sequence.extend([*copies[:lead], *(copies[lead + i] for i in order)])


def _sort_copies(body: onnx.GraphProto) -> None:
    """Put the copies of outer values at the end of a branch into the order of its outputs."""
    place = {value.name: index for index, value in enumerate(body.output)}
    tail = len(body.node)
    while tail and body.node[tail - 1].op_type == "Identity" and body.node[tail - 1].output[0] in place:
        tail -= 1
    _permute(body.node, tail, sorted(range(len(body.node) - tail), key=lambda i: place[body.node[tail + i].output[0]]))


def _number_names(function: onnx.FunctionProto) -> None:
    names = {name: name for name in function.input}
    taken, seen = set(function.input), Counter[str]()

    def renamed(name: str) -> str:
        if name and name not in names:
            base = _variable(name)
            while (new := base if seen[base] == 0 else f"{base}_{seen[base]}") in taken:
                seen[base] += 1
            taken.add(new)
            names[name] = new
        return names.get(name, name)

    _rename(function.node, renamed)
    function.output[:] = [renamed(name) for name in function.output]


def _rename(nodes: Sequence[onnx.NodeProto], renamed: Callable[[str], str]) -> None:
    for node in nodes:
        node.input[:] = [renamed(name) for name in node.input]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                body = attribute.g
                body.name = attribute.name
                for value in body.input:
                    value.name = renamed(value.name)
                _rename(body.node, renamed)
                for value in body.output:
                    value.name = renamed(value.name)
        node.output[:] = [renamed(name) for name in node.output]


def _variable(name: str) -> str:
    """``change`` for change_17: the name of the variable in the source."""
    return re.sub(r"(?<=.)_\d+$", "", name)
