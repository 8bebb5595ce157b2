"""The files that an experiment leaves: report.md, figures as SVG and PNG, and results.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osa_runtime.atomic import atomic_file
from osa_runtime.evidence.catalogue import KnownExperiment
from osa_runtime.evidence.claims import Verdict
from osa_runtime.evidence.runs import write_json
from osa_runtime.plotting import Draw, write_figure

MARKS = {"holds": "✓ holds", "fails": "✗ **fails**", "not judged": "not judged in a quick run"}


@dataclass(frozen=True)
class Picture:
    """A figure of the report; ``name`` is that of its files."""

    name: str
    caption: str
    size: tuple[float, float]
    draw: Draw


@dataclass(frozen=True)
class Findings:
    """The results of an experiment: the numbers of its claims, and the parts of its report in order."""

    measured: Mapping[str, float]
    parts: Sequence[str | Picture]
    results: Any = None
    setting: Mapping[str, Any] = field(default_factory=dict)


def write_report(
    folder: Path, known: KnownExperiment, outcome: Findings, verdicts: Sequence[Verdict], facts: Mapping[str, Any]
) -> list[Path]:
    """Write all files; results.json comes last, so that it says that the others are there."""
    written = [path for part in outcome.parts if isinstance(part, Picture) for path in _write_picture(folder, part)]
    report, results = folder / "report.md", folder / "results.json"
    with atomic_file(report) as temporary:
        temporary.write_text(_markdown(known, outcome, verdicts, facts), encoding="utf-8")
    content = {
        "experiment": known.name,
        **facts,
        "setting": dict(outcome.setting),
        "claims": [_claim(verdict) for verdict in verdicts],
        "measured": dict(outcome.measured),
        "results": outcome.results,
    }
    write_json(results, content)
    return [report, *written, results]


def _write_picture(folder: Path, picture: Picture) -> list[Path]:
    paths = [folder / f"{picture.name}{suffix}" for suffix in (".svg", ".png")]
    for path in paths:
        write_figure(path, picture.size, picture.draw)
    return paths


def _claim(verdict: Verdict) -> dict[str, Any]:
    claim = verdict.claim
    return {
        "claim": claim.text,
        "source": claim.source,
        "quantity": claim.quantity,
        "bound": claim.bound,
        "measured": verdict.value,
        "result": verdict.result,
    }


def _markdown(known: KnownExperiment, outcome: Findings, verdicts: Sequence[Verdict], facts: Mapping[str, Any]) -> str:
    claims = table(
        ("claim", "from", "bound", "measured", "result"),
        [(v.claim.text, v.claim.source, v.claim.bound, number(v.value), MARKS[v.result]) for v in verdicts],
    )
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    small = "\nThis is a quick run at small sizes: it shows that everything works, not what the papers claim.\n"
    lines = [
        f"# {known.name}: {known.question}",
        small if facts["quick"] else "",
        f"Of {known.paper}. Repeat it with `{facts['command']}`. Here: {facts['cpu']}, {versions}.",
        "\n## Claims\n",
        "The bounds stand in the code of the experiment.\n",
        claims,
        *(_part(part) for part in outcome.parts),
        "\n## Setting\n",
        table(("", ""), [(name, str(value)) for name, value in outcome.setting.items()]),
    ]
    return "\n".join(line for line in lines if line) + "\n"


def _part(part: str | Picture) -> str:
    return f"\n{part}" if isinstance(part, str) else f"\n![{part.caption}]({part.name}.svg)\n\n*{part.caption}*"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def number(value: float | None, pattern: str = ".3g") -> str:
    return "–" if value is None or not math.isfinite(value) else format(value, pattern)
