"""The benchmark of whole models as JSON and as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from speed.contest import all_doubts
from speed.markdown import circumstances, doubts_section, ratio_cell, table, time_cell
from speed.model_artifacts import COMPILED, EAGER, ORT, SOFTMAX
from speed.model_contenders import ALL, Meeting, ModelResult
from speed.verdict import Verdict, verdict_table

MIB = 1 << 20
HOW_TO_READ = (
    "Times: milliseconds of one call, arrays in and arrays out (spread of the rounds, relative error against float64); "
    "! marks a figure with a doubt. Memory: by how much a process of its own grew at most, from before it loaded the "
    "model, its libraries not counted.\n"
)


def doubts(results: Sequence[ModelResult]) -> list[str]:
    contests = {f"{r.subject.name}, batch {m.batch}": m.contest for r in results for m in r.meetings}
    return all_doubts(contests)


def as_json(results: Sequence[ModelResult], facts: Mapping[str, Any], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    found = doubts(results)
    return {
        "benchmark": "model",
        **facts,
        "trustworthy": not found,
        "doubts": found,
        "targets": [verdict.as_dict() for verdict in verdicts],
        "models": [result.as_dict() for result in results],
    }


def as_markdown(results: Sequence[ModelResult], facts: Mapping[str, Any], verdicts: Sequence[Verdict]) -> str:
    parts = [
        "# Whole models\n",
        circumstances(facts["machine"], facts["threads"], facts["rounds"]),
        "Skipless models with ‖S‖₂ = 2 in every layer; the softmax model differs in its attention alone.\n",
        doubts_section(doubts(results)),
        "## Targets\n",
        verdict_table(verdicts),
        "\n".join(f"![{what}]({file})" for what, file in facts["plots"].items()) + "\n",
        HOW_TO_READ,
    ]
    for result in results:
        parts += [f"## {_title(result)}\n", _times(result), _ratios(result), _missing(result)]
    return "\n".join(part for part in parts if part)


def _title(result: ModelResult) -> str:
    config = result.subject.config
    return f"{result.subject.name}: {config.depth} × {config.dim}, {config.heads} heads, {result.subject.tokens} tokens"


def _times(result: ModelResult) -> str:
    head = ["contender"]
    for meeting in result.meetings:
        head += [f"batch {meeting.batch}, ms", "rows/s", "MiB"]
    rows = []
    for name in (name for name in ALL if any(name in meeting.contest for meeting in result.meetings)):
        cells = [name]
        weighed = result.footprints.get(name)
        for place, meeting in enumerate(result.meetings):
            memory = weighed.memory[place] if weighed and weighed.memory else None
            time = time_cell(meeting.contest, name, meeting.errors.get(name))
            cells += [time, _rate(meeting, name), _mebi(memory)]
        load = f"{1e3 * weighed.load_seconds:.0f}" if weighed else "–"
        rows.append([*cells, load, _mebi(weighed.bytes_on_disk if weighed else None)])
    return table([*head, "load, ms", "size, MiB"], rows)


def _rate(meeting: Meeting, name: str) -> str:
    if name not in meeting.contest:
        return "–"
    return f"{1e3 * meeting.batch / meeting.contest.milliseconds(name).median:.1f}"


def _ratios(result: ModelResult) -> str:
    lines = []
    for meeting in result.meetings:
        found = [f"{ratio_cell(meeting.contest, ORT, peer)} {peer}" for peer in (EAGER, COMPILED, SOFTMAX)]
        way = f" (as {meeting.way})" if meeting.way else ""
        lines.append(f"Batch {meeting.batch}, in ONNX Runtime, times as fast: {', '.join(found)}{way}.\n")
    return "\n".join(lines)


def _missing(result: ModelResult) -> str:
    return "".join(f"- no figure for {name}: {reason}\n" for name, reason in result.missing.items())


def _mebi(size: int | None) -> str:
    return "–" if size is None else f"{size / MIB:.1f}"
