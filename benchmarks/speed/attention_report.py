"""The operator benchmark as JSON and as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from speed.attention_contenders import ALL, DENSE, EAGER, PAPER, SGEMM, SOFTMAX, Row, minimal_flops
from speed.attention_inputs import TRAINED_NORM
from speed.attention_peers import sgemm_flops
from speed.attention_targets import describe_ranges, share_of_sgemm, softmax_ratios
from speed.contest import all_doubts
from speed.exported_operator import PACKED, SEPARATE
from speed.markdown import circumstances, doubts_section, milliseconds, ratio_cell, table, time_cell
from speed.verdict import Verdict, verdict_table

HOW_TO_READ = (
    "Cells: milliseconds of one call (spread of the rounds, relative error against float64); ! marks a figure with a "
    "doubt. *ours, packed* takes the array that a layer's projection makes and merges the heads at the end, as a model "
    "runs it; *separate* takes q, k and v by head, as the others do.\n"
)


def doubts(rows: Sequence[Row]) -> list[str]:
    return all_doubts({str(row.point): row.contest for row in rows})


def as_json(rows: Sequence[Row], facts: Mapping[str, Any], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    found = doubts(rows)
    return {
        "benchmark": "attention",
        **facts,
        "trustworthy": not found,
        "doubts": found,
        "targets": [verdict.as_dict() for verdict in verdicts],
        "rows": [row.as_dict() for row in rows],
    }


def as_markdown(rows: Sequence[Row], facts: Mapping[str, Any], verdicts: Sequence[Verdict]) -> str:
    trained = [row for row in rows if row.point.norm == TRAINED_NORM]
    parts = [
        "# The attention operator\n",
        circumstances(facts["machine"], facts["threads"], facts["rounds"]),
        f"6 heads, float32, ‖S‖₂ = {TRAINED_NORM:g} unless it says otherwise. Judged: {facts['judged']}.\n",
        doubts_section(doubts(rows)),
        "## Targets\n",
        verdict_table(verdicts),
    ]
    if facts["plots"]:
        parts.append("\n".join(f"![{what}]({file})" for what, file in facts["plots"].items()) + "\n")
    parts.append(HOW_TO_READ)
    for width in sorted({row.point.width for row in trained}, reverse=True):
        of_width = [row for row in trained if row.point.width == width]
        parts += [f"## d = {width}\n", _grid(of_width, facts["judged"])]
        for ours in (PACKED, SEPARATE):
            parts.append(f"Against {ours}, {describe_ranges(softmax_ratios(of_width, width, ours))}.\n")
        parts += [_rates(of_width)]
    parts += _norms([row for row in rows if row.point.tokens in {r.point.tokens for r in rows if r not in trained}])
    parts += [_wrong(rows), _memory(facts["memory"])]
    return "\n".join(part for part in parts if part)


def _grid(rows: Sequence[Row], ours: str) -> str:
    head = ["batch", "tokens", *ALL, "× paper", "× matrix_exp", "× softmax"]
    cells = []
    for row in sorted(rows, key=lambda row: row.point):
        times = [time_cell(row.contest, name, row.errors.get(name)) for name in ALL]
        ratios = [ratio_cell(row.contest, ours, peer) for peer in (PAPER, DENSE, SOFTMAX)]
        cells.append([str(row.point.batch), str(row.point.tokens), *times, *ratios])
    return table(head, cells)


def _rates(rows: Sequence[Row]) -> str:
    cells = []
    for row in rows:
        if SGEMM in row.contest:
            shares = [share_of_sgemm(row, ours) for ours in (PACKED, SEPARATE)]
            limit = sgemm_flops() / row.contest.milliseconds(SGEMM).median / 1e6
            shown = ["–" if share is None else f"{share.median:.0%}" for share in shares]
            cells.append([str(row.point.tokens), f"{minimal_flops(row.point) / 1e9:.2f}", f"{limit:.0f}", *shown])
    if not cells:
        return ""
    head = ["tokens", "least GFLOP", "sgemm, GFLOP/s", f"{PACKED}: share of it", f"{SEPARATE}: share of it"]
    return table(head, cells)


def _norms(rows: Sequence[Row]) -> list[str]:
    """The sweep over ‖S‖, with the rows of the trained norm between."""
    names = (PACKED, SEPARATE, EAGER, PAPER)
    parts = []
    for width in sorted({row.point.width for row in rows}, reverse=True):
        chosen = sorted((r for r in rows if r.point.width == width and r.point.batch == 1), key=lambda r: r.point.norm)
        if len(chosen) < 2:
            continue
        cells = [
            [f"{row.point.norm:g}", *(time_cell(row.contest, name, row.errors.get(name)) for name in names)]
            for row in chosen
        ]
        parts += [f"## ‖S‖₂ at {chosen[0].point.tokens} tokens, d = {width}\n", table(["‖S‖₂", *names], cells)]
    return parts


def _wrong(rows: Sequence[Row]) -> str:
    lines = [
        f"- {row.point}: {name} has a relative error of {error:.1e} and is given no time"
        for row in rows
        for name, error in row.wrong.items()
    ]
    return "\n".join(["## Wrong answers\n", *lines]) + "\n" if lines else ""


def _memory(memory: Mapping[str, int] | None) -> str:
    if memory is None:
        return ""
    mebi = {name: milliseconds(value / (1 << 20)) for name, value in memory.items()}
    return (
        f"## Memory\n\nAt {memory['tokens']} tokens, d = {memory['width']}, a process of its own grew by at most "
        f"{mebi['peak']} MiB from before it loaded the session; inputs are {mebi['inputs']} MiB of that, outputs "
        f"{mebi['outputs']} MiB.\n"
    )
