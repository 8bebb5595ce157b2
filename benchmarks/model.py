"""Whole models in every format: the digits ViT, a ViT-S-sized model, and an encoder of 4096 tokens.

Contenders: ONNX Runtime, TorchScript, pt2, eager, torch.compile where its compiler works, and the softmax model of the
same sizes in ONNX Runtime, in its fastest variant. All have the same inputs and threads and take turns in blocks.
With --smaller they also run in fp16 and in 8 bits. Next to times: throughput, peak memory in processes of their own,
load times, sizes, and errors against float64.

    python benchmarks/model.py [--rounds 15] [--threads 2] [--models digits,vit-s,encoder] [--smaller] [--quick]
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from speed import report
from speed.contest import all_doubts
from speed.model_contenders import (
    ALL,
    COMPILED,
    DIGITS,
    EAGER,
    ENCODER,
    ORT,
    QUICK,
    SMALLER,
    SOFTMAX,
    VIT_S,
    ModelResult,
    measure_model,
    rate,
)

NAMED = {"digits": DIGITS, "vit-s": VIT_S, "encoder": ENCODER}
HOW_TO_READ = (
    "Times: milliseconds of one call, arrays in and arrays out (spread of the rounds, relative error against float64); "
    "! marks a figure with a doubt. Memory: by how much a process of its own grew at most, from before it loaded the "
    "model, its libraries not counted.\n"
)


def verdicts(results: Sequence[ModelResult]) -> Iterator[report.Verdict]:
    by_name = {result.subject.name: result for result in results}
    vit = {row.place: row.contest for row in by_name[VIT_S.name].rows} if VIT_S.name in by_name else {}
    for peer, least in ((EAGER, 1.5), (COMPILED, 1.0)):
        for batch in (1, 8):
            found = vit[batch].ratio(ORT, peer) if batch in vit else None
            yield report.judge(
                f"ViT-S in ONNX Runtime, batch {batch}: {least:g} × as fast as {peer}", found, least=least
            )
    for subject, first, again in ((VIT_S, 500, 200), (DIGITS, 150, 40)):
        weighed = by_name[subject.name].footprints.get(ORT) if subject.name in by_name else None
        loaded, cached = (weighed.load_seconds, weighed.cached_seconds) if weighed else (None, None)
        target = f"{subject.name} is loaded in at most"
        yield report.judge(f"{target} {first} ms", loaded and 1e3 * loaded, "{:.0f} ms", most=first)
        yield report.judge(f"{target} {again} ms from the cache", cached and 1e3 * cached, "{:.0f} ms", most=again)


def build_report(results: Sequence[ModelResult], facts: Mapping[str, Any]) -> report.Report:
    about = "Skipless models with ‖S‖₂ = 2 in every layer; the softmax model differs in its attention alone.\n"
    sections = [HOW_TO_READ]
    for result in results:
        config = result.subject.config
        sizes = f"{config.depth} × {config.dim}, {config.heads} heads, {result.subject.tokens} tokens"
        missing = "".join(f"- no figure for {name}: {reason}\n" for name, reason in result.missing.items())
        sections += [f"## {result.subject.name}: {sizes}\n", _times(result), *_ratios(result), missing]
    doubts = all_doubts({f"{r.subject.name}, batch {row.place}": row.contest for r in results for row in r.rows})
    content = {"models": [result.as_dict() for result in results]}
    return report.Report(
        "model", "Whole models", facts, doubts, content, sections, list(verdicts(results)), about=about
    )


def _times(result: ModelResult) -> str:
    heads = [head for row in result.rows for head in (f"batch {row.place}, ms", "rows/s", "MiB")]
    lines = []
    for name in (name for name in (*ALL, *SMALLER) if any(name in row.contest for row in result.rows)):
        cells, weighed = [name], result.footprints.get(name)
        for place, row in enumerate(result.rows):
            per_second = f"{rate(row, name):.1f}" if name in row.contest else "–"
            memory = weighed.memory[place] if weighed and weighed.memory else None
            cells += [report.time_cell(row.contest, name, row.errors.get(name)), per_second, report.mebi(memory)]
        loads = (weighed.load_seconds, weighed.cached_seconds) if weighed else (None, None)
        cells += ["–" if seconds is None else f"{1e3 * seconds:.0f}" for seconds in loads]
        lines.append([*cells, report.mebi(weighed.bytes_on_disk if weighed else None)])
    return report.table(["contender", *heads, "load, ms", "from the cache, ms", "size, MiB"], lines)


def _ratios(result: ModelResult) -> Iterator[str]:
    for row in result.rows:
        found = [f"{report.ratio_cell(row.contest, ORT, peer)} {peer}" for peer in (EAGER, COMPILED, SOFTMAX)]
        variant = f" (as {row.variants[SOFTMAX]})" if SOFTMAX in row.variants else ""
        yield f"Batch {row.place}, in ONNX Runtime, times as fast: {', '.join(found)}{variant}.\n"
        ratios = {name: ratio for name in SMALLER if (ratio := row.contest.ratio(name, ORT))}
        found = [f"{name} {ratio.median:.2f} ({ratio.p10:.2f} to {ratio.p90:.2f})" for name, ratio in ratios.items()]
        if found:
            yield f"Batch {row.place}, speed relative to fp32: {', '.join(found)}.\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = report.parser_of(__doc__)
    parser.add_argument("--models", default=",".join(NAMED), help="with commas; %(default)s by default")
    parser.add_argument("--smaller", action="store_true", help="also in fp16 and in 8 bits; see docs/quantization.md")
    options = report.parse(parser, arguments)
    names = report.parse_names(parser, "--models", options.models, NAMED)
    contenders = (*ALL, *SMALLER) if options.smaller else ALL
    subjects = QUICK if options.quick else [NAMED[name] for name in names]
    results = [measure_model(subject, options.pace, options.threads, contenders) for subject in subjects]
    build_report(results, report.facts_of(options)).write(options.out)


if __name__ == "__main__":
    main()
