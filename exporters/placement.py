"""Which nodes of a model a provider has no kernel for, and what ONNX Runtime does about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx

from osa_runtime.exporters.requirements import Requirement, definition, requirements
from osa_runtime.runtime.kernels import KernelList, KernelNeed

ON_CPU = "runs on the CPU, its data copied there and back"
IN_FLOAT32 = "computed in float32, cast there and back"
NOWHERE = "no provider runs it: a session will not start"
UNKNOWN = "unknown: the list of kernels does not mention it"


@dataclass(frozen=True)
class Gap:
    """Nodes of one operator and type for which a provider has no kernel, or for which nobody knows."""

    operator: str
    types: tuple[str, ...]
    consequence: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Placement:
    """What one provider runs of the expanded model. ``nodes`` counts all that need a kernel."""

    provider: str
    source: str
    nodes: int
    gaps: tuple[Gap, ...]

    @property
    def missing(self) -> int:
        return sum(len(gap.nodes) for gap in self.gaps if gap.consequence != UNKNOWN)


def place(expanded: onnx.ModelProto, kernels: KernelList, cpu: KernelList) -> Placement:
    """``expanded`` has no functions left; ``cpu`` is what ONNX Runtime falls back to."""
    judge = _Judge(kernels, cpu, {entry.domain: entry.version for entry in expanded.opset_import})
    needed = requirements(expanded)
    if not kernels.kernels:  # nothing is known of this provider, and its source says why
        return Placement(kernels.provider, kernels.source, len(needed), ())
    found: defaultdict[tuple[str, tuple[str, ...], str], list[str]] = defaultdict(list)
    for requirement in needed:
        for need, consequence in judge.gaps(requirement):
            found[_label(need), _types(need), consequence].append(requirement.name)
    gaps = (Gap(operator, types, consequence, tuple(nodes)) for (operator, types, consequence), nodes in found.items())
    return Placement(kernels.provider, kernels.source, len(needed), tuple(sorted(gaps, key=lambda gap: gap.operator)))


class _Judge:
    def __init__(self, kernels: KernelList, cpu: KernelList, opsets: Mapping[str, int]) -> None:
        self.kernels, self.cpu, self.opsets = kernels, cpu, opsets

    def gaps(self, requirement: Requirement) -> Iterator[tuple[KernelNeed, str]]:
        """The needs that are not met, those of the operator's own definition where ONNX Runtime would use it."""
        need = requirement.need
        served, on_cpu = self.kernels.serves(need), self.cpu.serves(need)
        if served or (served is None and on_cpu is None and self._has_definition(requirement)):
            return
        if on_cpu is False and self.cpu.serves(need.in_float32()):
            yield need, IN_FLOAT32
        elif on_cpu is False and self._has_definition(requirement):
            for inner in definition(requirement, self.opsets):
                yield from self.gaps(inner)
        elif served is None:
            yield need, UNKNOWN
        else:
            yield need, ON_CPU if on_cpu else NOWHERE if on_cpu is False else UNKNOWN

    def _has_definition(self, requirement: Requirement) -> bool:
        return bool(definition(requirement, self.opsets))


def _label(need: KernelNeed) -> str:
    return f"{need.domain}::{need.operator}" if need.domain not in ("", "ai.onnx") else need.operator


def _types(need: KernelNeed) -> tuple[str, ...]:
    names = {name.removeprefix("tensor(").removesuffix(")") for used in need.types.values() for name in used}
    return tuple(sorted(names))
