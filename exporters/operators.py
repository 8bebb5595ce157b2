"""How often each operator and each function occurs in an ONNX model, control flow included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import onnx

FunctionKey = tuple[str, str]  # domain and name


@dataclass(frozen=True)
class FunctionFacts:
    """``in_graph`` counts the calls that the main graph makes itself, ``calls`` all, also from other functions."""

    domain: str
    name: str
    summary: str
    in_graph: int
    calls: int


def count_operators(nodes: Iterable[onnx.NodeProto]) -> Counter[str]:
    """Nodes by operator, with the bodies of If and Loop; operators of other domains carry their domain."""
    counts: Counter[str] = Counter()
    for (domain, name), number in _count(nodes).items():
        counts[f"{domain}::{name}" if domain not in ("", "ai.onnx") else name] += number
    return counts


def function_facts(model: onnx.ModelProto) -> tuple[FunctionFacts, ...]:
    """The functions of a model, those that the main graph calls first."""
    inside = {(f.domain, f.name): _count(f.node) for f in model.functions}
    in_graph = _count(model.graph.node)
    calls = _all_calls(in_graph, inside)
    facts = [
        FunctionFacts(f.domain, f.name, _summary(f), in_graph[f.domain, f.name], calls[f.domain, f.name])
        for f in model.functions
    ]
    return tuple(sorted(facts, key=lambda fact: (-fact.in_graph, -fact.calls, fact.name)))


def _count(nodes: Iterable[onnx.NodeProto]) -> Counter[FunctionKey]:
    counts: Counter[FunctionKey] = Counter()
    for node in nodes:
        counts[node.domain, node.op_type] += 1
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                counts += _count(body.node)
    return counts


def _all_calls(in_graph: Counter[FunctionKey], inside: dict[FunctionKey, Counter[FunctionKey]]) -> Counter[FunctionKey]:
    """Every call that the inlined model would hold; ONNX forbids recursion, so this ends."""
    total: Counter[FunctionKey] = Counter()
    waiting = Counter({key: number for key, number in in_graph.items() if key in inside})
    while waiting:
        total += waiting
        called: Counter[FunctionKey] = Counter()
        for key, number in waiting.items():
            for callee, times in inside[key].items():
                if callee in inside:
                    called[callee] += number * times
        waiting = called
    return total


def _summary(function: onnx.FunctionProto) -> str:
    lines = function.doc_string.strip().splitlines()
    return lines[0].strip() if lines else ""
