"""The tables of the page: checks, results, parts, and the rules by which they were judged."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from osa_runtime.parity.certificate import Certificate, UnitResult
from osa_runtime.parity.tolerances import EAGER_SHARE, HARMLESS_NORM, NO_DIGITS_LEFT, UNDECIDED_FACTOR
from osa_runtime.verification.page import figures as paint
from osa_runtime.verification.page.cases import (
    largest_norm,
    name_of,
    other_name,
    outputs,
    tolerances,
    worst_defect,
    worst_error,
    worst_stretch,
)
from osa_runtime.verification.page.markup import Figure, Html, folded, join, number, passed_badge, table, tag


def checks_table(certificate: Certificate) -> Html:
    if not certificate.checks:
        return Html("")
    rows = [(passed_badge(check.passed), check.name, check.detail) for check in certificate.checks]
    return table(("verdict", "check", "what was found"), rows)


def units_table(certificate: Certificate) -> Html:
    other, units = other_name(certificate), certificate.units
    if not units:
        return Html("")
    rows = [
        (
            unit.unit,
            passed_badge(unit.passed and unit.cumulative_passed is not False),
            unit.alone,
            unit.eager,
            unit.tolerance or None,
            unit.cumulative,
            unit.cumulative_tolerance,
        )
        for unit in units
    ]
    columns = ("part", "verdict", "artifact, alone", f"{other}, alone", "tolerance", "behind it", "tolerance behind it")
    notes = ["" if unit.passed else unit.reason for unit in units]
    return folded(f"All {len(units)} parts", table(columns, rows, notes))


def layers_table(certificate: Certificate) -> Html:
    layers = certificate.layers
    if not layers:
        return Html("")
    columns: tuple[str, ...] = (
        "layer",
        "party",
        "case",
        "verdict",
        "‖AᵀA − I‖",
        "|‖Av‖/‖v‖ − 1|",
        "from exp(S)·V",
        "tolerance",
    )
    columns += ("‖S‖", "bound of ‖S‖", "squarings")
    rows = [
        (
            layer.layer,
            layer.party,
            Figure(layer.case),
            passed_badge(layer.passed),
            worst_defect(layer),
            worst_stretch(layer),
            worst_error(layer),
            layer.tolerance,
            largest_norm(layer),
            layer.bound,
            layer.squarings,
        )
        for layer in layers
    ]
    notes = ["" if layer.passed and layer.heads else layer.reason for layer in layers]
    said = "The worst head of each layer. A defect of 4 and a stretch of 2 tolerances are allowed."
    return folded(f"All {len(layers)} measurements of layers", tag("p", said), table(columns, rows, notes))


def bisection_rows(certificate: Certificate) -> Html:
    found = certificate.bisection
    if found is None:
        return Html("")
    rows = [("first wrong signal behind", found.cumulative or "no part"), ("on the case", found.case)]
    if certificate.kind != "compare":
        rows.insert(0, ("wrong by itself", found.alone or "no part"))
    lines = [tag("dl", *(part for name, value in rows for part in (tag("dt", name), tag("dd", tag("code", value)))))]
    if found.repro is not None and found.repro.startswith("not written"):
        lines.append(tag("p", f"The folder that reproduces it was {found.repro}"))
    elif found.repro is not None:
        lines.append(tag("p", "This folder holds the part alone, its inputs and the expected result:"))
        lines.append(tag("pre", tag("code", f"python {found.repro}/reproduce.py")))
    return join(lines)


def rule(certificate: Certificate) -> str:
    """The tolerance, in words."""
    if not certificate.cases:
        return "Nothing was run: the checks before the first case failed."
    if all(o.artifact is None and o.parity is None for _, o in outputs(certificate)):
        return "An output passes when it is finite. Attention is judged layer by layer, by what it must be."
    truth = "float64" if any(o.artifact for _, o in outputs(certificate)) else f"the {other_name(certificate)}"
    said = f"An output passes when no value is further from {truth} than {_amount(certificate)}."
    if truth == "float64":
        said += (
            f" Where {other_name(certificate)} is itself beyond that, the artifact may be {EAGER_SHARE:g} times as far,"
            " or as far as rounding explains: it is measured how far float64 moves when weights and inputs change by as"
            f" much as rounding changes them. Where that is more than {NO_DIGITS_LEFT:g}, no digits are left, and"
            f" nothing can be decided up to {UNDECIDED_FACTOR:g} times that; beyond it, the output fails."
            " Rows are judged one by one."
        )
    return said


def _amount(certificate: Certificate) -> str:
    settings = certificate.settings
    found = tolerances(certificate)
    low, high = number(min(found, default=None)), number(max(found, default=None))
    several = low if low == high else f"{low} to {high}"
    said = f"{several} of the largest value of the output"
    if settings.get("rtol") is None:
        said += f" (by format, type and depth; in proportion to ‖S‖ beyond {HARMLESS_NORM:g})"
    else:
        said += " (given by --rtol)"
    return said + (f" plus {number(settings['atol'])} (given by --atol)" if settings.get("atol") else "")


def reproduction(certificate: Certificate) -> Html:
    settings = certificate.settings
    lines = [tag("pre", tag("code", command(certificate)))]
    if settings.get("given_inputs"):
        lines.append(tag("p", "The inputs were given in a file; they are not part of this page."))
    elif certificate.cases:
        seed = settings.get("seed")
        lines.append(
            tag(
                "p",
                f"Seed {seed}: the random cases take seeds from {seed} on, in the order of the table, the other kinds "
                f"from {_later(seed)} on.",
            )
        )
    rows = {key: value for key, value in settings.items() if value is not None and value is not False}
    lines.append(tag("dl", *(part for k, v in rows.items() for part in (tag("dt", k), tag("dd", _value(v))))))
    return join(lines)


def _later(seed: Any) -> str:
    return str(seed + 1000) if isinstance(seed, int) else "another"


def _value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def command(certificate: Certificate) -> str:
    """The command line; what the certificate does not record is in capitals."""
    words = ["osa", "compare" if certificate.kind == "compare" else "verify", shlex.quote(name_of(certificate.subject))]
    reference, settings = certificate.reference, certificate.settings
    if certificate.kind == "compare":
        words.append(shlex.quote(name_of(reference or {})))
    elif reference is not None:
        words += ["--against", "CHECKPOINT"]
    for flag, key in (("--batch", "batches"), ("--tokens", "lengths")):
        if settings.get(key):
            words += [flag, ",".join(map(str, settings[key]))]
    for key in ("seed", "rtol", "atol", "threads"):
        if settings.get(key) is not None:
            words += [f"--{key}", shlex.quote(str(settings[key]))]
    words += _files(certificate) + _device(certificate)
    return " ".join(words)


def _files(certificate: Certificate) -> list[str]:
    words = ["--load-inputs", "INPUTS.npz"] if certificate.settings.get("given_inputs") else []
    words += ["--load-outputs", "OUTPUTS.npz"] if certificate.settings.get("given_outputs") else []
    words += ["--evaluate", shlex.quote(certificate.evaluation.data)] if certificate.evaluation is not None else []
    if certificate.bisection is not None:
        words += ["--bisect"] if certificate.kind == "compare" else ["--bisect", "FOLDER"]
    return words


def _device(certificate: Certificate) -> list[str]:
    asked = certificate.settings.get("device") or "cpu"
    used = (certificate.subject.get("placement") or {}).get("device") or asked
    words = [] if asked == "cpu" else ["--device", shlex.quote(str(asked))]
    return words + ([] if str(asked).split(":")[0] == str(used).split(":")[0] else ["--allow-fallback"])


MOST_LABELS = 80
ROOM = 110  # characters next to each other under a plot


def units_plot(certificate: Certificate) -> Html:
    """The error of each part, fed alone, and, where it was bisected, of the signal after it."""
    units, other = certificate.units, other_name(certificate)
    if all(value is None for value in _errors(units)):
        return Html("")
    labels = paint.short_names([unit.unit for unit in units])
    longest = max(map(len, labels))
    flat = len(labels) * longest < ROOM

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        _unit_series(axes, units, other)
        step = -(-len(units) // MOST_LABELS)
        axes.set_xticks(range(0, len(units), step), labels[::step], rotation=0 if flat else 90, fontsize=7.5)
        axes.set(xlim=(-0.6, len(units) - 0.4), ylabel="relative error")
        axes.grid(visible=False, axis="x")
        paint.legend(axes)

    height = 2.9 + (0.2 if flat else 0.07 * longest)
    return paint.figure("parts", height, draw, _caption(certificate), "Relative error by part, logarithmic")


def _errors(units: Sequence[UnitResult]) -> list[float | None]:
    return [value for unit in units for value in (unit.alone, unit.eager, unit.cumulative)]


def _caption(certificate: Certificate) -> str:
    units = certificate.units
    said = "Relative error of each part from float64 when it is fed with what eager feeds it, in order of execution."
    if any(unit.cumulative is not None for unit in units):
        said += " Triangles: the error of the signal behind the part, in a run of the whole model."
    if certificate.kind == "compare":
        said = "How far the signal behind each part is from that of the reference, in order of execution."
    said += " The dashed and dotted lines are the tolerances, × marks what is wrong."
    return said + (paint.EXACT if 0 in _errors(units) else "")


def _unit_series(axes: Any, units: Sequence[UnitResult], other: str) -> None:
    tolerances = [unit.tolerance or None for unit in units]
    behind = [unit.cumulative_tolerance for unit in units]
    floor = paint.logarithmic(axes.yaxis, [*_errors(units), *tolerances, *behind])
    for name, values, colour, marker, size in (
        ("artifact, alone", [unit.alone for unit in units], paint.ARTIFACT, "o", 5.0),
        (f"{other}, alone", [unit.eager for unit in units], paint.OTHER, "s", 3.5),
        ("artifact, behind it", [unit.cumulative for unit in units], paint.CUMULATIVE, "^", 4.5),
    ):
        if any(value is not None for value in values):
            style: dict[str, Any] = dict(ls="-", lw=0.7, color=colour, ms=size, clip_on=False, zorder=3)
            axes.plot(range(len(units)), paint.lifted(values, floor), marker, label=name, **style)
    for name, values, dashes in (("tolerance, alone", tolerances, "--"), ("tolerance, behind it", behind, ":")):
        if any(value is not None for value in values):
            paint.limit_line(axes, paint.lifted(values, floor), dashes, label=name)
    _wrong_units(axes, units)


def _wrong_units(axes: Any, units: Sequence[UnitResult]) -> None:
    """A cross on each wrong part, at the upper edge if it has no number."""
    top = axes.get_ylim()[1]
    crosses = [(i, unit.alone) for i, unit in enumerate(units) if not unit.passed]
    crosses += [(i, unit.cumulative) for i, unit in enumerate(units) if unit.cumulative_passed is False]
    if crosses:
        xs, ys = zip(*((x, top if y is None else y) for x, y in crosses), strict=True)
        style: dict[str, Any] = dict(color=paint.FAIL, ms=9, mew=2, clip_on=False, zorder=4)
        axes.plot(xs, ys, "x", ls="", label="wrong", **style)
