"""Where the boxes of a drawing go: layers from top to bottom, arrows that bend around the boxes they pass.

The usual four steps for layered graphs (Sugiyama, Tagawa & Toda 1981): layers by longest path, invisible points where
an arrow crosses a layer, an order within each layer by the mean place of the neighbours, then coordinates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

SWEEPS = 60
PULL_OF_BOXES = 16.0  # how much more a box counts than a point that an arrow passes

Edge = tuple[str, str]


@dataclass(frozen=True)
class Layout:
    """Centres of the boxes; ``routes`` gives for each arrow the points that it goes through, ends included."""

    x: Mapping[str, float]
    layer: Mapping[str, int]
    routes: Mapping[Edge, tuple[tuple[float, int], ...]]
    layers: int


def lay_out(keys: Sequence[str], edges: Sequence[Edge], widths: Mapping[str, float], last: Sequence[str]) -> Layout:
    """``keys`` come in topological order; ``last`` belong into the bottom layer."""
    layer = _layers(keys, edges, last)
    chains = {edge: _chain(edge, layer) for edge in edges}
    rows: defaultdict[int, list[str]] = defaultdict(list)
    places = dict(layer)
    for key in keys:
        rows[layer[key]].append(key)
    for edge, chain in chains.items():
        for offset, point in enumerate(chain[1:-1], start=1):
            rows[layer[edge[0]] + offset].append(point)
            places[point] = layer[edge[0]] + offset
    neighbours = _neighbours(chains.values())
    x = _coordinates([rows[index] for index in sorted(rows)], neighbours, widths)
    routes = {edge: tuple((x[point], places[point]) for point in chain) for edge, chain in chains.items()}
    return Layout({key: x[key] for key in keys}, layer, routes, len(rows))


def _layers(keys: Sequence[str], edges: Sequence[Edge], last: Sequence[str]) -> dict[str, int]:
    before: defaultdict[str, list[str]] = defaultdict(list)
    after: defaultdict[str, list[str]] = defaultdict(list)
    for source, target in edges:
        before[target].append(source)
        after[source].append(target)
    layer: dict[str, int] = {}
    for key in keys:
        layer[key] = max((layer[source] + 1 for source in before[key] if source in layer), default=0)
    for key in reversed(keys):  # a box that nothing feeds, such as a second input, goes right above its first reader
        if not before[key] and after[key]:
            layer[key] = min(layer[target] for target in after[key]) - 1
    bottom = max(layer.values(), default=0)
    return layer | dict.fromkeys(last, bottom)


def _chain(edge: Edge, layer: Mapping[str, int]) -> tuple[str, ...]:
    source, target = edge
    between = range(layer[source] + 1, layer[target])
    return (source, *(f"{source} to {target} at {index}" for index in between), target)


def _neighbours(chains: Iterable[Sequence[str]]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for chain in chains:
        for one, other in pairwise(chain):
            found[one].append(other)
            found[other].append(one)
    return found


def _coordinates(
    rows: Sequence[list[str]], neighbours: Mapping[str, list[str]], widths: Mapping[str, float]
) -> dict[str, float]:
    x: dict[str, float] = {}
    for row in rows:
        x |= _spread(row, dict.fromkeys(row, 0.0), widths)
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = {key: _pulled(key, x, neighbours.get(key, []), widths) for key in row}
            row.sort(key=lambda key: wanted[key])
            x |= _spread(row, wanted, widths)
    return x


def _spread(row: Sequence[str], wanted: Mapping[str, float], widths: Mapping[str, float]) -> dict[str, float]:
    """As close to the wanted places as boxes allow that must not touch."""
    places: list[float] = []
    for index, key in enumerate(row):
        least = places[-1] + (_width(row[index - 1], widths) + _width(key, widths)) / 2 if places else wanted[key]
        places.append(max(wanted[key], least))
    misses = [(wanted[key] - place, _weight(key, widths)) for key, place in zip(row, places, strict=True)]
    shift = sum(miss * weight for miss, weight in misses) / sum(weight for _, weight in misses)
    return {key: place + shift for key, place in zip(row, places, strict=True)}


def _width(key: str, widths: Mapping[str, float]) -> float:
    return widths.get(key, 0.35)  # a point of an arrow that passes


def _weight(key: str, widths: Mapping[str, float]) -> float:
    return PULL_OF_BOXES if key in widths else 1.0


def _pulled(key: str, x: Mapping[str, float], neighbours: Sequence[str], widths: Mapping[str, float]) -> float:
    """Where the neighbours pull. Like pulls like harder: columns of boxes and long arrows both come out straight."""
    if not neighbours:
        return x[key]
    weights = [PULL_OF_BOXES if (key in widths) == (other in widths) else 1.0 for other in neighbours]
    return sum(x[other] * weight for other, weight in zip(neighbours, weights, strict=True)) / sum(weights)
