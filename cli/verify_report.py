"""The output of ``osa verify`` and ``osa compare``: progress, tables, the verdict, and files."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from osa_runtime.atomic import check_writable
from osa_runtime.cli.options import check_file, parse_sizes
from osa_runtime.errors import InputError

if TYPE_CHECKING:
    from osa_runtime.parity.certificate import CaseResult, Certificate, LayerResult, OutputResult
    from osa_runtime.verification.settings import Run, VerifySettings


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
        from osa_runtime.parity.certificate import verdict_meaning, verdict_title

        if not certificate.failed:
            undecided = sum(case.verdict == "undecided" for case in certificate.cases)
            aside = f", {undecided} of {len(certificate.cases)} cases undecided" if undecided else ""
            colour = "green" if certificate.passed else "yellow"
            self._console.print(
                f"[bold {colour}]{verdict_title(certificate)}[/]{aside}: {verdict_meaning(certificate)}", soft_wrap=True
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


@dataclass(frozen=True)
class Files:
    """Destinations of the results. ``folder`` is the artifact that gets a certificate of its own."""

    report: Path | None = None
    html: Path | None = None
    inputs: Path | None = None
    outputs: Path | None = None
    folder: Path | None = None

    def check(self) -> None:
        """Refuse names that are not valid and paths that cannot be written, before the long work."""
        from osa_runtime.parity.certificate import CERTIFICATE_FILE

        taken: dict[Path, str] = {}
        for flag, path, suffix in (
            ("--report", self.report, ".json"),
            ("--html", self.html, ".html"),
            ("--save-inputs", self.inputs, ".npz"),
            ("--save-outputs", self.outputs, ".npz"),
        ):
            check_file(flag, path, suffix)
            other = flag if path is None else taken.setdefault(path.absolute(), flag)
            if other != flag:
                raise InputError(f"{other} and {flag} are both {path}; expected two names.")
        if self.folder is not None and not self.folder.is_dir():
            raise InputError(f"--certify writes into an exported folder, but {self.folder} is not one; use --report.")
        if self.folder is not None:
            check_writable(self.folder / CERTIFICATE_FILE)
        if self.html is not None:
            from osa_runtime.plotting import require_matplotlib

            require_matplotlib()

    def write(self, run: Run) -> None:
        from osa_runtime.parity.certificate import CERTIFICATE_FILE
        from osa_runtime.verification.cases import write_cases, write_outputs

        if self.inputs is not None:
            write_cases(self.inputs, run.cases)
        if self.outputs is not None:
            write_outputs(self.outputs, run.outputs)
        if self.report is not None:
            run.certificate.write(self.report)
        if self.folder is not None:
            run.certificate.write(self.folder / CERTIFICATE_FILE)
        if self.html is not None:
            from osa_runtime.verification.page.document import write_page

            write_page(run.certificate, self.html)

    def written(self) -> list[Path]:
        from osa_runtime.parity.certificate import CERTIFICATE_FILE

        own = self.folder / CERTIFICATE_FILE if self.folder is not None else None
        return [path for path in (self.report, own, self.html, self.inputs, self.outputs) if path is not None]


def read_settings(
    artifact: Path,
    batches: str | None,
    lengths: str | None,
    load_inputs: Path | None,
    load_outputs: Path | None,
    **plain: Any,
) -> VerifySettings:
    """``plain`` are those of VerifySettings that need not be read from anything."""
    from osa_runtime.runtime.device import DeviceSettings
    from osa_runtime.verification.cases import read_cases, read_outputs
    from osa_runtime.verification.settings import VerifySettings
    from osa_runtime.verification.subject import Subject

    settings = VerifySettings(batches=parse_sizes("batches", batches), lengths=parse_sizes("lengths", lengths), **plain)
    if load_inputs is not None and (batches is not None or lengths is not None):
        raise InputError("--load-inputs brings its own sizes; leave out --batch and --tokens.")
    if load_outputs is not None and load_inputs is None:
        raise InputError("--load-outputs needs the inputs that they belong to: --load-inputs.")
    for flag, value in (("--rtol", settings.rtol), ("--atol", settings.atol)):
        if value is not None and not math.isfinite(value):
            raise InputError(f"{flag} is {value}, expected a finite number of 0 or more.")
    if load_inputs is None:
        return settings
    subject = Subject.open(artifact, DeviceSettings())
    with subject.session:
        cases = read_cases(load_inputs, subject.session)
        expected = read_outputs(load_outputs, subject.session) if load_outputs is not None else None
    return dataclasses.replace(settings, inputs=cases, outputs=expected)


def check_data(data: str | None) -> None:
    """Refuse data that cannot be read, before any work is done."""
    if data is not None:
        from osa_runtime.evaluation import read_samples

        read_samples(data)


def evaluated(run: Run, artifact: Path, data: str | None, against: Path | None, progress: Callable[[str], None]) -> Run:
    """The certificate with the accuracy, which is not measured for a model that failed."""
    if data is None or run.certificate.failed:
        return run
    from osa_runtime.evaluation import evaluate

    found = evaluate(artifact, data, against, progress=lambda model, done, n: progress(f"{model}: {done} of {n}"))
    return dataclasses.replace(run, certificate=run.certificate.evaluated(found))


@dataclass(frozen=True)
class Signer:
    """Signs certificates that are a PASS, and no others."""

    key: Any = None

    @classmethod
    def of_key(cls, path: Path | None, settings: VerifySettings, *, certify: bool, known: bool) -> Signer:
        if path is None:
            return cls()
        from osa_runtime.parity.signing import read_private_key, settings_objection

        if not certify:
            raise InputError("--sign signs the certificate that --certify writes; give both.")
        if not known:
            raise InputError("--sign signs a PASS, which needs a reference; add --against.")
        reason = settings_objection(settings.describe())
        if reason is not None:
            raise InputError(
                f"--sign signs only certificates that `osa serve --require-certificate` accepts, but {reason}."
            )
        return cls(read_private_key(path))

    def signed(self, run: Run) -> Run:
        if self.key is None:
            return run
        if not run.certificate.passed:
            typer.echo("The certificate is not signed: only a PASS is.", err=True)
            return run
        from osa_runtime.parity.signing import sign

        return dataclasses.replace(run, certificate=sign(run.certificate, self.key))
