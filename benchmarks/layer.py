"""The attention layer in ONNX Runtime, as it is exported and by queries, keys and values, as it was before it folded.

One graph of each serves all lengths. Both take turns in blocks, have the same weights, with ‖S‖₂ = 2 at every length,
and are compared with float64. Where folding does not pay, the exported layer goes by queries, keys and values, too.

    python benchmarks/layer.py [--rounds 15] [--threads 2] [--quick] [--out DIR]
"""

import argparse
import copy
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from contenders.models import strengthen
from driver.benchmark import Benchmark
from driver.contest import Contest, Row, Variant
from driver.report import Verdict, judge
from torch import nn

from osa_runtime import OrthogonalSelfAttention, load
from osa_runtime.exporters import export

FOLDED, APART = "as exported", "by Q, K and V"
SIZES = ((256, 4), (384, 6))
LENGTHS = (256, 512, 1024, 4096)


class Point(NamedTuple):
    dim: int
    heads: int
    tokens: int

    def __str__(self) -> str:
        return f"D = {self.dim}, {self.tokens} tokens"


TARGETS = {Point(256, 4, 1024): 1.6, Point(256, 4, 4096): 2.3}


class ByQueriesKeysValues(OrthogonalSelfAttention):
    """The same layer, whose projections stay nodes of the graph."""

    def _whole(self, *_: Any) -> None:
        return None


def contests(options: argparse.Namespace) -> Iterator[Contest]:
    sizes, lengths = (((16, 2),), (8, 200)) if options.quick else (SIZES, LENGTHS)
    for point in [Point(*size, tokens) for size in sizes for tokens in lengths]:
        with tempfile.TemporaryDirectory() as folder:
            yield contest(point, Path(folder), options.threads)


def contest(point: Point, folder: Path, threads: int) -> Contest:
    torch.manual_seed(0)
    x, layer = torch.randn(1, point.tokens, point.dim), OrthogonalSelfAttention(point.dim, point.heads)
    strengthen(layer.eval().requires_grad_(False), x)
    apart = ByQueriesKeysValues(point.dim, point.heads).eval().requires_grad_(False)
    apart.load_state_dict(layer.state_dict())
    exact = copy.deepcopy(layer).double()(x.double())
    layers = {FOLDED: layer, APART: apart}
    contenders = {name: {"": exported(layers[name], folder / name, x, threads)} for name in layers}
    return Contest(point, contenders, threads, lambda _: exact)


def exported(module: nn.Module, folder: Path, x: torch.Tensor, threads: int) -> Variant:
    axes = {"x": {1: torch.export.Dim("tokens", min=2, max=x.shape[1])}}
    export(module, (x[:, :16],), folder, dynamic_shapes=axes, checked=False)
    session, feeds = load(folder, threads=threads, cache=False), {"x": x.numpy()}
    return Variant(lambda: next(iter(session.run(feeds).values())))


def targets(rows: Mapping[Point, Row]) -> Iterator[Verdict]:
    found = {point: row.ratio(FOLDED, APART) for point, row in rows.items()}
    for point, least in TARGETS.items():
        yield judge(f"{point}: {least:g} × as fast as {APART}", found.get(point), least=least)
    ratios = [ratio.median for ratio in found.values() if ratio is not None]
    yield judge("nowhere more than 3 % slower", min(ratios, default=None), least=0.97)


BENCHMARK = Benchmark(
    description=__doc__,
    name="layer",
    title="The folded layer",
    about=f"A layer in float32, batch 1, ‖S‖₂ = 2; × is how many times as fast as {APART} it is as exported.",
    contests=contests,
    targets=targets,
    contenders=(FOLDED, APART),
    ratios={"×": (FOLDED, APART)},
    panel=lambda point: f"D = {point.dim}",
)

if __name__ == "__main__":
    BENCHMARK.run()
