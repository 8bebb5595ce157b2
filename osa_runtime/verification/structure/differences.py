"""The differences of two models, in the names of the expected one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.verification.structure.graph import MalformedGraphError, Model, Node, Operator, Scope, main_scope

FURTHEST = 500  # values to search for the neighbours of an extra or missing node


def graph_differences(found: Model, expected: Model) -> list[str]:
    """The differences themselves, without their consequences; empty if both are one model."""
    wanted = main_scope(expected)
    try:
        scope = main_scope(found)
    except MalformedGraphError as error:
        return [f"the graph can be read in more than one way: {error}"]
    walk = Walk()
    for a, b in zip(found.graph.outputs, expected.graph.outputs, strict=False):
        walk.waiting.append(Pair(scope, wanted, a, b, f"output {b}"))
    walk.run()
    said = [*_head(found, expected), *walk.in_order(wanted), *_claims(scope, wanted)]
    if not walk.found:
        said += [*_unread(scope, wanted), *_functions(scope, wanted)]
    return said or ([] if _same(scope, wanted) else ["the graph is not the one of a fresh export"])


def _same(mine: Scope, theirs: Scope) -> bool:
    """True if the models are equal apart from head and claims, so that no message above has to be complete."""
    compared = [
        (
            [scope.digest(name) for name in scope.graph.outputs],
            sorted(scope.nodes),
            scope.tensors(),
            scope.functions.digests(),
            scope.graph.rest,
        )
        for scope in (mine, theirs)
    ]
    return compared[0] == compared[1]


def _head(found: Model, expected: Model) -> Iterator[str]:
    for name in {**expected.head, **found.head}:
        mine, theirs = found.head.get(name), expected.head.get(name)
        if mine is None or theirs is None or mine.digest != theirs.digest:
            texts = ("nothing" if it is None else it.text() for it in (mine, theirs))
            yield "{}: {}, expected {}".format(name, *texts)


@dataclass(frozen=True)
class Pair:
    """A value of each model that should be the same, and its reader."""

    mine: Scope
    theirs: Scope
    a: str
    b: str
    reader: str

    @property
    def same(self) -> bool:
        return self.mine.digest(self.a) == self.theirs.digest(self.b)

    def at_home(self) -> Pair:
        """The pair in the scopes that the two names belong to: a body may read values around it."""
        return replace(self, mine=self.mine.find(self.a), theirs=self.theirs.find(self.b))


@dataclass
class Walk:
    """A walk from the outputs upwards, through values that differ, to the differences themselves."""

    waiting: list[Pair] = field(default_factory=list)
    found: list[tuple[str, str]] = field(default_factory=list)  # the expected value and its fault
    seen: set[tuple[int, int, str, str]] = field(default_factory=set)
    functions: set[Operator] = field(default_factory=set)

    def run(self) -> None:
        while self.waiting:
            pair = self.waiting.pop(0).at_home()
            key = (id(pair.mine), id(pair.theirs), pair.a, pair.b)
            if key not in self.seen and not pair.same:
                self._explain(pair)
            self.seen.add(key)

    def in_order(self, scope: Scope) -> list[str]:
        """The differences in the order of execution."""
        order = {name: index for index, name in enumerate(scope.digests)}
        return list(dict.fromkeys(text for _, text in sorted(self.found, key=lambda item: order.get(item[0], 0))))

    def _report(self, pair: Pair, text: str) -> None:
        self.found.append((pair.b, f"{pair.theirs.where}{text}"))

    def _explain(self, pair: Pair) -> None:
        mine, theirs = pair.mine, pair.theirs
        tensors = mine.graph.tensors.get(pair.a), theirs.graph.tensors.get(pair.b)
        node, place = mine.makers.get(pair.a, (None, 0))
        other, other_place = theirs.makers.get(pair.b, (None, 0))
        if tensors[0] is not None and tensors[1] is not None:
            others = [name for name, tensor in theirs.graph.tensors.items() if tensor.digest == tensors[0].digest]
            text = f"{pair.reader} reads the values of {others[0]}, expected those of {pair.b}" if others else ""
            self._report(pair, text or tensor_difference(pair.b, tensors[0].array(), tensors[1].array()))
        elif node and other and (node.operator, place) == (other.operator, other_place):
            self._compare_nodes(pair, node, other)
        elif between := _between(mine, pair.a, theirs.digests[pair.b]):
            kind = "an extra node" if len(between) == 1 else "extra nodes"
            nodes = ", ".join(map(str, reversed(between)))
            self._report(pair, f"{kind} {nodes} between {_source(theirs, pair.b)} and {pair.reader}")
        elif between := _between(theirs, pair.b, mine.digests[pair.a]):
            self._report(pair, f"missing before {pair.reader}: {', '.join(map(str, reversed(between)))}")
        else:
            self._report(pair, f"{pair.reader} reads {_said(mine, pair.a)}, expected {_said(theirs, pair.b)}")

    def _compare_nodes(self, pair: Pair, a: Node, b: Node) -> None:
        before = len(self.found), len(self.waiting)
        self._compare_properties(pair, a, b)
        self._compare_functions(pair, b)
        if len(a.inputs) != len(b.inputs):
            self._report(pair, f"{b} has {len(a.inputs)} inputs, expected {len(b.inputs)}")
        for x, y in zip(a.inputs, b.inputs, strict=False):
            if x and y:
                self.waiting.append(Pair(pair.mine, pair.theirs, x, y, str(b)))
            elif x or y:
                self._report(pair, f"{b} reads {x or 'nothing'}, expected {y or 'nothing'}")
        if before == (len(self.found), len(self.waiting)):
            self._report(pair, f"{b} is not the one of a fresh export")

    def _compare_properties(self, pair: Pair, a: Node, b: Node) -> None:
        for name in sorted({*a.properties, *b.properties}):
            mine, theirs = a.properties.get(name), b.properties.get(name)
            if mine is None or theirs is None or mine.digest != theirs.digest:
                texts = ("nothing" if it is None else it.text() for it in (mine, theirs))
                self._report(pair, "{}: {} is {}, expected {}".format(b, name, *texts))
        for name in sorted({*a.bodies, *b.bodies}):
            if name not in a.bodies or name not in b.bodies:
                self._report(pair, f"{b} has {'an extra' if name in a.bodies else 'no'} {name}")
            else:
                self._compare_bodies(pair, a, b, name)

    def _compare_bodies(self, pair: Pair, a: Node, b: Node, name: str) -> None:
        mine, theirs = pair.mine.bodies[a, name], pair.theirs.bodies[b, name]
        if mine.own_digest() != theirs.own_digest():
            theirs.where = f"{pair.theirs.where}{b}, {name}: "
            if not self._compare_outputs(mine, theirs):
                self._report(pair, f"{b}: {name} has nodes, weights, types or outputs that it should not have")

    def _compare_outputs(self, mine: Scope, theirs: Scope) -> bool:
        names = zip(mine.graph.outputs, theirs.graph.outputs, strict=False)
        pairs = [Pair(mine, theirs, a, b, f"its output {b}") for a, b in names]
        different = [pair for pair in pairs if not pair.same]
        self.waiting += different
        return bool(different)

    def _compare_functions(self, pair: Pair, node: Node) -> None:
        key, mine, theirs = node.operator, pair.mine.functions, pair.theirs.functions
        if key in self.functions or mine.digest(key) == theirs.digest(key):
            return
        self.functions.add(key)
        name = ".".join(filter(None, key))
        if key not in mine.graphs or key not in theirs.graphs:
            kind = "is missing" if key in theirs.graphs else "is defined by the model, which it should not be"
            self.found.append(("", f"the function {name} {kind}"))
            return
        scope, wanted = mine.scope(key), theirs.scope(key)
        wanted.where = f"in the function {name}: "
        if not self._compare_outputs(scope, wanted):
            self.found.append(("", f"{wanted.where}its arguments, operator sets or unused nodes differ"))


def _between(scope: Scope, name: str, wanted: bytes) -> list[Node]:
    """The nodes on the shortest path from ``name`` up to a value with the wanted digest."""
    waiting: list[tuple[str, list[Node]]] = [(name, [])]
    seen = {name}
    while waiting and len(seen) < FURTHEST:
        current, path = waiting.pop(0)
        if scope.digest(current) == wanted:
            return path
        node, _ = scope.find(current).makers.get(current, (None, 0))
        for above in () if node is None else node.inputs:
            if above and above not in seen:
                seen.add(above)
                waiting.append((above, [*path, node] if node is not None else path))
    return []


def _source(scope: Scope, name: str) -> str:
    return str(scope.makers[name][0]) if name in scope.makers else name


def _said(scope: Scope, name: str) -> str:
    if name in scope.makers:
        return f"{name}, made by {scope.makers[name][0].operator[-1]}"
    return f"the constant {name}" if name in scope.graph.tensors else f"the input {name}"


def _unread(mine: Scope, theirs: Scope) -> Iterator[str]:
    """The nodes and weights that the outputs do not depend on."""
    for kind, a, b in (("nodes", mine.nodes, theirs.nodes), ("weights", mine.tensors(), theirs.tensors())):
        extra, missing = (Counter(a) - Counter(b)).total(), (Counter(b) - Counter(a)).total()
        if extra or missing:
            yield f"{kind} that nothing reads: {extra} extra, {missing} missing"


def _claims(mine: Scope, theirs: Scope) -> Iterator[str]:
    """Wrong types and shapes stated by the graph, which runtimes trust; a missing one does no harm."""
    known: dict[bytes, set[bytes]] = {}
    for name, claim in theirs.graph.claims.items():
        known.setdefault(theirs.digest(name), set()).add(claim)
    values = set(theirs.digests.values())
    wrong = [
        name
        for name, claim in mine.graph.claims.items()
        if name not in mine.digests
        or (mine.digests[name] in values and claim not in known.get(mine.digests[name], set()))
    ]
    if wrong:
        yield f"the graph states a type or shape of {', '.join(wrong[:3])} that a fresh export does not state"


def _functions(mine: Scope, theirs: Scope) -> Iterator[str]:
    """Differences in functions that nothing calls, which the walk from the outputs does not reach."""
    ours, others = mine.functions.digests(), theirs.functions.digests()
    for key in sorted({*ours, *others}):
        if ours.get(key) != others.get(key):
            kind = "missing" if key not in ours else "extra" if key not in others else "another one"
            yield f"the function {'.'.join(filter(None, key))} is {kind}"


def shown(differences: Sequence[str], most: int = 3) -> str:
    left = len(differences) - most
    return "; ".join(differences[:most]) + (f"; and {left} more" if left > 0 else "")


Array = NDArray[Any]

ROUNDING = 4  # units in the last place of the largest value: folding in another version may round in another order


def tensor_difference(name: str, found: Array, expected: Array) -> str:
    """The difference of a tensor whose bits are not the expected ones."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{name} is {_kind(found)}, expected {_kind(expected)}"
    different = _bits(found) != _bits(expected)
    if not different.any():
        return f"{name} has the right values, but is stored differently"
    first = np.unravel_index(int(np.argmax(different)), found.shape) if found.ndim else ()
    count = f"{int(different.sum())} of {found.size} values differ{'s' if different.sum() == 1 else ''}"
    at = f", at ({', '.join(map(str, first))})" if found.ndim else ""
    return f"{name}: {count}{at}: {found[first]!s}, expected {expected[first]!s}"


def missing_weights(found: Mapping[str, Array], expected: Mapping[str, Array]) -> list[str]:
    """The expected weights that are not in ``found`` under any name, transposed or not."""
    wrong = []
    held = {array.tobytes() for array in found.values()} | {array.T.tobytes() for array in found.values()}
    for name, array in expected.items():
        if array.size < 2 or not _is_weight(array) or array.tobytes() in held:
            continue
        if any(_close(other, array) for other in found.values()):
            continue
        same = found.get(name)
        wrong.append(f"{name} is not among the weights" if same is None else tensor_difference(name, same, array))
    return wrong


def _is_weight(array: Array) -> bool:
    """True for weights, including quantised ones; other whole numbers are shapes and indices."""
    return array.dtype.kind in "fV" or (array.dtype.itemsize == 1 and array.dtype.kind in "iu")


def _close(found: Array, expected: Array) -> bool:
    if found.dtype != expected.dtype or found.size != expected.size or expected.dtype.kind == "V":
        return False
    if expected.dtype.kind == "f":
        limit = ROUNDING * np.finfo(expected.dtype).eps * float(np.max(np.abs(expected), initial=0.0))
    else:
        found, expected, limit = found.astype(int), expected.astype(int), 1  # ties may be rounded up or down
    return any(
        other.shape == expected.shape and bool(np.all(np.abs(other - expected) <= limit)) for other in (found, found.T)
    )


def _bits(array: Array) -> Array:
    """The bits: NaN equals itself, and -0 differs from 0."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}") if array.dtype.kind in "fV" else array


def _kind(array: Array) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"
