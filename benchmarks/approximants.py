"""The best approximant and form by size: our operator in eager against the paper's QR + matrix_exp.

Contenders take turns in blocks. Ratios are against the paper's method, higher is faster; next to each time is its error
against float64.

    python benchmarks/approximants.py [--rounds 15] [--threads 2] [--quick] [--out benchmarks/results]
"""

from collections.abc import Sequence
from functools import partial

import torch
from speed.attention_contenders import PAPER
from speed.attention_inputs import Inputs, Point, make_inputs
from speed.attention_report import as_dict
from speed.contest import Row, Way, measure_row
from speed.report import Report, facts_of, parse, parser_of, ratio_cell, table, time_cell

from osa_runtime.ops import orthogonal_attention
from osa_runtime.ops.reference import paper_attention

POINTS = [(1, 17, 64), (1, 50, 64), (1, 197, 64), (1, 1024, 64), (1, 197, 32), (1, 1024, 32), (8, 197, 64)]
OURS = (("dense", "taylor"), ("dense", "pade"), ("lowrank", "taylor"), ("lowrank", "pade"), ("auto", "taylor"))
LARGEST_DENSE = 300  # tokens


def contenders(inputs: Inputs) -> dict[str, dict[str, Way]]:
    arguments = (inputs.q, inputs.k, inputs.v, inputs.scale)
    found = {PAPER: {"": Way(partial(paper_attention, *arguments))}}
    for form, approximant in OURS:
        if form != "dense" or inputs.q.size(-2) <= LARGEST_DENSE:
            call = partial(orthogonal_attention, *arguments, form=form, approximant=approximant)
            found[f"{form}, {approximant}"] = {"": Way(call)}
    return found


@torch.no_grad()
def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(parser_of(__doc__), arguments)
    facts, rows = facts_of(options), list[Row]()
    torch.set_num_threads(options.threads)
    for point in [Point(*place) for place in (POINTS[:1] if options.quick else POINTS)]:
        print(point, flush=True)
        inputs = make_inputs(point)
        known = dict.fromkeys(contenders(inputs), inputs.exact_orthogonal())
        rows.append(measure_row(point, contenders(inputs), known.get, options.pace, options.threads))
    cells = [
        [str(row.place), name, time_cell(row.contest, name, row.errors[name]), ratio_cell(row.contest, name, PAPER)]
        for row in rows
        for name in row.contest.blocks
    ]
    sections = [table(["point", "contender", "ms (spread, error)", "× paper"], cells)]
    contests, content = {str(row.place): row.contest for row in rows}, {"rows": [as_dict(row) for row in rows]}
    Report("approximants", "Forms and approximants in eager", facts, contests, content, sections).write(options.out)


if __name__ == "__main__":
    main()
