"""The output of ``osa verify`` and ``osa compare``: progress, tables, the verdict."""

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
COLOURS = {"pass": "green", "undecided": "yellow", "fail": "bold red"}  # from good to bad
MOST_REMARKS = 8


class VerifyReport:
    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(highlight=False)

    @contextlib.contextmanager
    def working(self) -> Iterator[Callable[[str], None]]:
        """A line with the current step on stderr, when that is a terminal."""
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
        self._usefulness(certificate, files)
        for path in files.written():
            self._console.print(f"written: {_plain(str(path))}", soft_wrap=True)

    def _usefulness(self, certificate: Certificate, files: Files) -> None:
        from osa_runtime.parity.signing import objection

        reason = objection(certificate) if files.folder is not None and not certificate.failed else None
        if reason is not None:
            said = f"`osa serve --require-certificate` does not accept this certificate: {_plain(reason)}"
            self._console.print(f"[yellow]note[/yellow]: {said}", soft_wrap=True)

    def _cases(self, certificate: Certificate) -> None:
        outputs = [output for case in certificate.cases for output in case.outputs]
        if any(output.parity for output in outputs):
            self._console.print(_case_table(certificate))
        elif outputs and all(output.verdict == "pass" for output in outputs):
            self._console.print(f"[green]✓[/green] finite outputs in {len(certificate.cases)} cases")
        self._remarks(certificate)
        further = [
            "artifact" if output.artifact["max_rel"] > output.eager["max_rel"] else "eager"
            for output in outputs
            if output.artifact and output.eager
        ]
        if further:
            mine, theirs = further.count("artifact"), further.count("eager")
            self._console.print(f"further from float64: the artifact in {mine} cases, eager in {theirs}")

    def _remarks(self, certificate: Certificate) -> None:
        """Explain why a case beyond its limit, or without digits, is not a failure; failures come at the end."""
        rows = [(case, output) for case in certificate.cases for output in case.outputs]
        said = [
            f"{_name(case)}: {_plain(output.remark)}"
            for case, output in rows
            if output.remark and output.verdict != "fail"
        ]
        for remark in said[:MOST_REMARKS]:
            self._console.print(f"  · {remark}", soft_wrap=True)
        if len(said) > MOST_REMARKS:
            self._console.print(f"  … and {len(said) - MOST_REMARKS} more; --report has all of them")

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
        from osa_runtime.parity.wording import meaning, title

        if not certificate.failed:
            undecided = sum(case.verdict == "undecided" for case in certificate.cases)
            aside = f", {undecided} of {len(certificate.cases)} cases undecided" if undecided else ""
            colour = "green" if certificate.passed else "yellow"
            self._console.print(
                f"[bold {colour}]{title(certificate)}[/]{aside}: {meaning(certificate)}", soft_wrap=True
            )
            if certificate.signature is not None:
                self._console.print(f"signed by the key {certificate.signature.key}", soft_wrap=True)
            return
        failures = certificate.failures() or ["no case could be decided"]
        self._console.print(f"[bold red]FAIL[/bold red], {len(failures)} findings:")
        for failure in failures[:MOST_FAILURES]:
            self._console.print(f"  · {_plain(failure)}", soft_wrap=True)
        if len(failures) > MOST_FAILURES:
            self._console.print(f"  … and {len(failures) - MOST_FAILURES} more; --report has all of them")


def _case_table(certificate: Certificate) -> Table:
    """One row for each kind of input and output: its worst case, with the sizes."""
    other = "reference" if certificate.kind == "compare" else "eager"
    three = any(output.artifact for case in certificate.cases for output in case.outputs)
    title = "distance from float64, and from each other" if three else "distance"
    table = _table(f"{title}, relative to the largest value; the worst case of each kind")
    axes = " × ".join(certificate.cases[0].sizes)
    case = f"case, {axes}" if axes else "case"
    columns = [case, "cases", "‖S‖", "artifact", other, "apart"] if three else [case, "cases", "apart"]
    for name in [*columns, "limit", "top-1", "verdict"]:
        table.add_column(name, justify="left" if name in (case, "verdict") else "right", no_wrap=True)
    for rows in _by_kind(certificate):
        result, output = max(rows, key=lambda row: _severity(row[1]))
        table.add_row(*_case_row(result, output, len(rows), three))
    return table


def _by_kind(certificate: Certificate) -> list[list[tuple[CaseResult, OutputResult]]]:
    groups: dict[tuple[str, str], list[tuple[CaseResult, OutputResult]]] = {}
    for case in certificate.cases:
        for output in case.outputs:
            groups.setdefault((case.kind.split()[0], output.name), []).append((case, output))
    return list(groups.values())


def _severity(output: OutputResult) -> tuple[int, float]:
    return list(COLOURS).index(output.verdict), (output.needed or 0.0) / max(output.tolerance, 1e-300)


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", title_style="dim", box=None, padding=(0, 1, 0, 0), header_style="bold"
    )


def _case_row(case: CaseResult, output: OutputResult, count: int, three: bool) -> list[str]:
    parity, mine, theirs = (_of(part, "max_rel") for part in (output.parity, output.artifact, output.eager))
    cells = [_name(case), str(count)]
    if three:
        cells += [_number(case.norm, ".3g"), _number(mine), _number(theirs)]
    top = _of(output.artifact or output.parity, "top1")
    cells += [_number(parity), _number(output.tolerance), "" if top is None else f"{top:.0%}"]
    return [*cells, f"[{COLOURS[output.verdict]}]{output.verdict}[/]"]


def _name(case: CaseResult) -> str:
    return f"{_plain(case.kind)} {'×'.join(map(str, case.sizes.values()))}".strip()


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
