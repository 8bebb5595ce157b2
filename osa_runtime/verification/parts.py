"""The parts of a model, which together are the whole of it: modules, and the operators between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from osa_runtime.parity.feeds import Case
from osa_runtime.verification.inside.eager_parts import EagerParts
from osa_runtime.verification.inside.model_parts import ModelParts

ORDINARY = ("random", "padded", "given")


@dataclass(frozen=True)
class Part:
    """A module that both sides show (``end`` is None), or the operators before its input or before an output.

    Positions, residual sums and pooling are such operators: ``embed → stack.blocks.0.attention``.
    """

    name: str
    unit: str = ""
    end: str | int | None = None


def common_units(model_parts: ModelParts, eager: ModelParts) -> tuple[str, ...]:
    return tuple(unit for unit in eager.units if unit in set(model_parts.units))


def innermost(units: Sequence[str]) -> tuple[str, ...]:
    return tuple(unit for unit in units if not any(other.startswith(f"{unit}.") for other in units))


def partition(model_parts: ModelParts, eager: EagerParts) -> tuple[Part, ...]:
    """The parts in the order of execution. A module that only eager shows belongs to the part before the next."""
    return tuple(_parts(innermost(common_units(model_parts, eager)), eager))


def _parts(shared: Sequence[str], eager: EagerParts) -> Iterator[Part]:
    start, hidden = ", ".join(eager.party.inputs), list[str]()
    for unit in innermost(eager.units):
        if unit in shared:
            yield Part(_way(start, unit, hidden), end=unit)
            yield Part(unit, unit)
            start, hidden = unit, []
        elif not any(other.startswith(f"{unit}.") or unit.startswith(f"{other}.") for other in shared):
            hidden.append(unit)
    for number, output in enumerate(eager.party.outputs):
        yield Part(_way(start, output, hidden), end=number)


def _way(start: str, end: str, hidden: Sequence[str]) -> str:
    return f"{start} → {end}" + (f" (with {', '.join(hidden)})" if hidden else "")


def part_cases(cases: Sequence[Case], most_dense: int) -> list[Case]:
    """One case for each path through the parts: both forms, with and without padding. At least one case."""
    found: dict[tuple[bool, bool], Case] = {}
    for case in sorted(cases, key=_preference):
        if all(np.isfinite(x).all() for x in case.feeds.values() if x.dtype.kind == "f"):
            long = max(list(case.sizes.values())[1:], default=0) > most_dense
            padded = any(not x.all() for x in case.feeds.values() if x.dtype == np.bool_ and x.ndim > 1)
            found.setdefault((long, padded), case)
    return list(found.values()) or list(cases[:1])


def _preference(case: Case) -> tuple[bool, bool, int]:
    """Sort key: ordinary values, several rows, and no more of them than needed."""
    rows = next(iter(case.sizes.values()), 1)
    return case.kind not in ORDINARY, rows < 2, sum(x.size for x in case.feeds.values())
