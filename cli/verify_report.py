"""What ``osa verify`` and ``osa compare`` show: progress, tables, the verdict."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from osa_runtime.cli.verify_files import Files
    from osa_runtime.parity.certificate import CaseResult, Certificate, LayerResult, OutputResult

MOST_FAILURES = 12
COLOURS = {"pass": "green", "fail": "bold red", "undecided": "yellow"}


class VerifyReport:
    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(highlight=False)

    @contextlib.contextmanager
    def working(self) -> Iterator[Callable[[str], None]]:
        """A line that says what is going on, on stderr, where that is a terminal."""
        console = Console(stderr=True, highlight=False)
        if not console.is_terminal:
            yield lambda _: None
            return
        with console.status("verifying") as status:
            yield lambda step: status.update(f"verifying · {_plain(step)}")

    def result(self, certificate: Certificate, files: Files) -> None:
        if self._as_json:
            typer.echo(certificate.to_json(), nl=False)
            return
        for check in certificate.checks:
            mark = "[green]✓[/green]" if check.passed else "[bold red]✗[/bold red]"
            self._console.print(f"{mark} {_plain(check.name)}: {_plain(check.detail)}", soft_wrap=True)
        self._cases(certificate)
        if certificate.layers:
            self._console.print(_layer_table(certificate))
        self._units(certificate)
        for note in certificate.notes:
            self._console.print(f"[yellow]note[/yellow]: {_plain(note)}", soft_wrap=True)
        self._verdict(certificate)
        for path in files.written():
            self._console.print(f"written: {_plain(str(path))}", soft_wrap=True)

    def _cases(self, certificate: Certificate) -> None:
        outputs = [output for case in certificate.cases for output in case.outputs]
        if any(output.parity for output in outputs):
            self._console.print(_case_table(certificate))
        elif outputs and all(output.verdict == "pass" for output in outputs):
            self._console.print(f"[green]✓[/green] finite outputs in {len(certificate.cases)} cases")
        further = [
            "artifact" if output.artifact["max_rel"] > output.eager["max_rel"] else "eager"
            for output in outputs
            if output.artifact and output.eager
        ]
        if further:
            mine, theirs = further.count("artifact"), further.count("eager")
            self._console.print(f"further from float64: the artifact in {mine} cases, eager in {theirs}")

    def _units(self, certificate: Certificate) -> None:
        if certificate.units:
            known = [unit for unit in certificate.units if unit.alone is not None]
            worst = max(known, key=lambda unit: unit.alone or 0.0, default=None)
            wrong = sum(not unit.passed for unit in certificate.units)
            said = f"{len(certificate.units)} parts fed alone, {wrong} of them wrong"
            if worst is not None:
                said += f"; the furthest from float64 is {worst.unit}: {worst.alone:.1e} (eager {_number(worst.eager)})"
            self._console.print(f"{'✗' if wrong else '✓'} {_plain(said)}", soft_wrap=True)
        found = certificate.bisection
        if found is not None:
            self._console.print(f"[bold]bisection[/bold] on the case {_plain(found.case)}:", soft_wrap=True)
            self._console.print(f"  first part that is wrong by itself: {found.alone or 'none'}", soft_wrap=True)
            self._console.print(f"  first part behind which the signal is wrong: {found.cumulative or 'none'}")
            if found.repro:
                self._console.print(f"  to reproduce it: {_plain(found.repro)}", soft_wrap=True)

    def _verdict(self, certificate: Certificate) -> None:
        if certificate.passed:
            undecided = sum(case.verdict == "undecided" for case in certificate.cases)
            aside = f" ({undecided} of {len(certificate.cases)} cases undecided)" if undecided else ""
            self._console.print(f"[bold green]PASS[/bold green]{aside}")
            return
        failures = certificate.failures() or ["no case could be decided"]
        self._console.print(f"[bold red]FAIL[/bold red], {len(failures)} findings:")
        for failure in failures[:MOST_FAILURES]:
            self._console.print(f"  · {_plain(failure)}", soft_wrap=True)
        if len(failures) > MOST_FAILURES:
            self._console.print(f"  … and {len(failures) - MOST_FAILURES} more; --report has all of them")


def _case_table(certificate: Certificate) -> Table:
    other = "reference" if certificate.kind == "compare" else "eager"
    three = any(output.artifact for case in certificate.cases for output in case.outputs)
    title = "distance from float64, and from each other" if three else "distance"
    table = _table(f"{title}, relative to the largest value")
    axes = " × ".join(certificate.cases[0].sizes)
    case = f"case, {axes}" if axes else "case"
    columns = [case, "‖S‖", "artifact", other, "apart"] if three else [case, "apart"]
    for name in [*columns, "limit", "top-1", "verdict"]:
        table.add_column(name, justify="left" if name in (case, "verdict") else "right", no_wrap=True)
    for result in certificate.cases:
        for output in result.outputs:
            table.add_row(*_case_row(result, output, three))
    return table


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", title_style="dim", box=None, padding=(0, 2, 0, 0), header_style="bold"
    )


def _case_row(case: CaseResult, output: OutputResult, three: bool) -> list[str]:
    parity, mine, theirs = (_of(part, "max_rel") for part in (output.parity, output.artifact, output.eager))
    cells = [f"{case.kind} {'×'.join(map(str, case.sizes.values()))}"]
    if three:
        cells += [_number(case.norm, ".3g"), _number(mine), _number(theirs)]
    top = _of(output.artifact or output.parity, "top1")
    cells += [_number(parity), _number(output.tolerance), "" if top is None else f"{top:.0%}"]
    return [*cells, f"[{COLOURS[output.verdict]}]{output.verdict}[/]"]


def _layer_table(certificate: Certificate) -> Table:
    """The worst head over all cases, for each layer of the artifact."""
    table = _table("attention: worst ‖AᵀA − I‖, |‖Av‖/‖v‖ − 1|, distance from exp(S)·V")
    for name in ("layer", "defect", "length", "error", "‖S‖", "squarings", "verdict"):
        table.add_column(name, justify="left" if name in ("layer", "verdict") else "right", no_wrap=True)
    own = [layer for layer in certificate.layers if layer.party == "artifact"]
    for name in dict.fromkeys(layer.layer for layer in own):
        table.add_row(*_layer_row(name, [layer for layer in own if layer.layer == name]))
    return table


def _layer_row(name: str, layers: list[LayerResult]) -> list[str]:
    heads = [head for layer in layers for head in layer.heads]
    counts = [layer.squarings for layer in layers]
    passed = all(layer.passed for layer in layers)
    lengths = [max(abs(head.ratio_low - 1), abs(head.ratio_high - 1)) for head in heads]
    return [
        _plain(name),
        _number(max((head.defect for head in heads), default=None)),
        _number(max(lengths, default=None)),
        _number(max((head.error for head in heads), default=None)),
        _number(max((head.norm for head in heads), default=None), ".3g"),
        str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}",
        "[green]pass[/]" if passed else "[bold red]fail[/]",
    ]


def _of(metrics: dict[str, Any] | None, name: str) -> float | None:
    return None if metrics is None else metrics[name]


def _number(value: float | None, form: str = ".1e") -> str:
    return "–" if value is None else format(value, form)


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
