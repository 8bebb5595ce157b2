"""The targets, tables and figure of the benchmark of whole models."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from osa_runtime.plotting import FAINT, INK
from speed.model_contenders import ALL, COMPILED, DIGITS, EAGER, ORT, SOFTMAX, VIT_S, ModelResult, rate
from speed.report import Plot, Report, Verdict, at_least, mebi, ratio_cell, table, three_digits, time_cell

HOW_TO_READ = (
    "Times: milliseconds of one call, arrays in and arrays out (spread of the rounds, relative error against float64); "
    "! marks a figure with a doubt. Memory: by how much a process of its own grew at most, from before it loaded the "
    "model, its libraries not counted.\n"
)
COLOURS = dict(zip(ALL, ("#0b6e99", "#7cc4e0", "#7cc4e0", "#c2601a", "#829ab1", "#7b4ea3"), strict=True))


def verdicts(results: Sequence[ModelResult], help_seconds: float | None) -> Iterator[Verdict]:
    by_name = {result.subject.name: result for result in results}
    vit = {row.place: row.contest for row in by_name[VIT_S.name].rows} if VIT_S.name in by_name else {}
    for peer, least in ((EAGER, 1.5), (COMPILED, 1.0)):
        for batch in (1, 8):
            found = vit[batch].ratio(ORT, peer) if batch in vit else None
            yield at_least(f"ViT-S in ONNX Runtime, batch {batch}: {least:g} × as fast as {peer}", least, found)
    digits = by_name[DIGITS.name].footprints.get(ORT) if DIGITS.name in by_name else None
    yield _under("the digits model is loaded", 0.15, digits.load_seconds if digits else None)
    yield _under("`osa --help` answers", 0.5, help_seconds)


def _under(what: str, most: float, seconds: float | None) -> Verdict:
    target = f"{what} in less than {1e3 * most:.0f} ms"
    return Verdict(target) if seconds is None else Verdict(target, f"{1e3 * seconds:.0f} ms", seconds < most)


def build_report(results: Sequence[ModelResult], facts: Mapping[str, Any]) -> Report:
    about = "Skipless models with ‖S‖₂ = 2 in every layer; the softmax model differs in its attention alone.\n"
    sections = [HOW_TO_READ]
    for result in results:
        config = result.subject.config
        sizes = f"{config.depth} × {config.dim}, {config.heads} heads, {result.subject.tokens} tokens"
        missing = "".join(f"- no figure for {name}: {reason}\n" for name, reason in result.missing.items())
        sections += [f"## {result.subject.name}: {sizes}\n", _times(result), *_ratios(result), missing]
    contests = {f"{r.subject.name}, batch {row.place}": row.contest for r in results for row in r.rows}
    content = {"models": [result.as_dict() for result in results]}
    judged = list(verdicts(results, facts["help_seconds"]))
    batches = sorted({row.place for result in results for row in result.rows})
    size = (4.4 * len(results), 2.3 * len(batches))
    plots = {"model-time.svg": Plot("Milliseconds by model and batch", size, partial(draw_models, results, batches))}
    return Report("model", "Whole models", facts, contests, content, sections, judged, plots, about)


def _times(result: ModelResult) -> str:
    heads = [head for row in result.rows for head in (f"batch {row.place}, ms", "rows/s", "MiB")]
    lines = []
    for name in (name for name in ALL if any(name in row.contest for row in result.rows)):
        cells, weighed = [name], result.footprints.get(name)
        for place, row in enumerate(result.rows):
            per_second = f"{rate(row, name):.1f}" if name in row.contest else "–"
            memory = weighed.memory[place] if weighed and weighed.memory else None
            cells += [time_cell(row.contest, name, row.errors.get(name)), per_second, mebi(memory)]
        load = f"{1e3 * weighed.load_seconds:.0f}" if weighed else "–"
        lines.append([*cells, load, mebi(weighed.bytes_on_disk if weighed else None)])
    return table(["contender", *heads, "load, ms", "size, MiB"], lines)


def _ratios(result: ModelResult) -> Iterator[str]:
    for row in result.rows:
        found = [f"{ratio_cell(row.contest, ORT, peer)} {peer}" for peer in (EAGER, COMPILED, SOFTMAX)]
        way = f" (as {row.ways[SOFTMAX]})" if SOFTMAX in row.ways else ""
        yield f"Batch {row.place}, in ONNX Runtime, times as fast: {', '.join(found)}{way}.\n"


def draw_models(results: Sequence[ModelResult], batches: Sequence[int], figure: Any) -> None:
    """Milliseconds, a panel for each model and batch; the bars have p10 to p90 of the rounds."""
    panels = figure.subplots(len(batches), len(results), squeeze=False)
    for column, result in enumerate(results):
        for row in result.rows:
            axes = panels[batches.index(row.place)][column]
            axes.set_title(f"{result.subject.name}, batch {row.place}: milliseconds")
            axes.grid(visible=False, axis="y")
            axes.set_yticks(range(len(ALL)), ALL if column == 0 else [""] * len(ALL), color=INK)
            axes.invert_yaxis()
            longest = max(row.contest.milliseconds(name).p90 for name in row.contest.blocks)
            axes.set_xlim(0, 1.22 * longest)
            for place, name in enumerate(ALL):
                if name not in row.contest:
                    axes.text(0, place, " not measured", va="center", color=FAINT)
                    continue
                found = row.contest.milliseconds(name)
                error = [[found.median - found.p10], [found.p90 - found.median]]
                style = dict(color=COLOURS[name], error_kw={"ecolor": INK, "lw": 0.8})
                axes.barh(place, found.median, 0.7, xerr=error, **style)
                label = f" {three_digits(found.median)}"
                axes.text(max(found.median, found.p90) + 0.01 * longest, place, label, va="center", fontsize=8)
