"""The attention layer in ONNX Runtime, as it is exported and by queries, keys and values, as it was before it folded.

One graph of each serves all lengths. Both take turns in blocks, have the same weights, with ‖S‖₂ = 2 at every length,
and are compared with float64. Where folding does not pay, the exported layer goes by queries, keys and values, too.

    python benchmarks/layer.py [--rounds 15] [--threads 2] [--quick] [--out DIR]
"""

import copy
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from speed.contest import Pace, Row, Variant, all_doubts, measure_row
from speed.model_contenders import strengthen
from speed.report import Report, Verdict, facts_of, judge, parse, parser_of, ratio_cell, table, time_cell
from torch import nn

from osa_runtime import OrthogonalSelfAttention, load
from osa_runtime.exporters import export

FOLDED, APART = "as exported", "by Q, K and V"
SIZES = ((256, 4), (384, 6))
LENGTHS = (256, 512, 1024, 4096)
TARGETS = {(256, 1024): 1.6, (256, 4096): 2.3}


class ByQueriesKeysValues(OrthogonalSelfAttention):
    """The same layer, whose projections stay nodes of the graph."""

    def _whole(self, *_: Any) -> None:
        return None


def measure(dim: int, heads: int, tokens: int, pace: Pace, threads: int) -> Row:
    print(f"{dim} × {heads} heads, {tokens} tokens", flush=True)
    torch.manual_seed(0)
    x, layer = torch.randn(1, tokens, dim), OrthogonalSelfAttention(dim, heads).eval().requires_grad_(False)
    strengthen(layer, x)
    exact = copy.deepcopy(layer).double()(x.double())
    with tempfile.TemporaryDirectory() as folder:
        variants = {FOLDED: {"": _exported(layer, Path(folder) / "folded", x, threads)}}
        variants[APART] = {"": _exported(_apart(layer, dim, heads), Path(folder) / "apart", x, threads)}
        return measure_row((dim, tokens), variants, lambda _: exact, pace, threads)


def _apart(layer: nn.Module, dim: int, heads: int) -> nn.Module:
    other = ByQueriesKeysValues(dim, heads).eval().requires_grad_(False)
    other.load_state_dict(layer.state_dict())
    return other


def _exported(module: nn.Module, folder: Path, x: torch.Tensor, threads: int) -> Variant:
    axes = {"x": {1: torch.export.Dim("tokens", min=2, max=x.shape[1])}}
    export(module, (x[:, :16],), folder, dynamic_shapes=axes, checked=False)
    session, feeds = load(folder, threads=threads, cache=False), {"x": x.numpy()}
    return Variant(lambda: next(iter(session.run(feeds).values())))


def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    found = {row.place: row.contest.ratio(FOLDED, APART) for row in rows}
    for (dim, tokens), least in TARGETS.items():
        target = f"D = {dim}, {tokens} tokens: {least:g} × as fast as {APART}"
        yield judge(target, found.get((dim, tokens)), least=least)
    ratios = [ratio.median for ratio in found.values() if ratio is not None]
    yield judge("nowhere more than 3 % slower", min(ratios, default=None), least=0.97)


def build_report(rows: Sequence[Row], facts: Mapping[str, Any]) -> Report:
    lines = []
    for row in rows:
        cells = [time_cell(row.contest, name, row.errors.get(name)) for name in (FOLDED, APART)]
        lines.append([f"{row.place[0]}", f"{row.place[1]}", *cells, ratio_cell(row.contest, FOLDED, APART)])
    sections = [table(["D", "tokens", f"{FOLDED}, ms", f"{APART}, ms", "times as fast"], lines)]
    doubts = all_doubts({f"D = {row.place[0]}, {row.place[1]} tokens": row.contest for row in rows})
    content = [{"dim": row.place[0], "tokens": row.place[1]} | row.contest.as_dict(error=row.errors) for row in rows]
    return Report("layer", "The folded layer", facts, doubts, {"rows": content}, sections, list(verdicts(rows)))


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(parser_of(__doc__), arguments)
    sizes, lengths = (((16, 2),), (8, 200)) if options.quick else (SIZES, LENGTHS)
    rows = [measure(*size, tokens, options.pace, options.threads) for size in sizes for tokens in lengths]
    build_report(rows, facts_of(options)).write(options.out)


if __name__ == "__main__":
    main()
