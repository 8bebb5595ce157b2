"""The other tables of the page: checks, parts, layers, and where a fault begins."""

from __future__ import annotations

from osa_runtime.parity.certificate import Certificate
from osa_runtime.verification.page.markup import (
    Figure,
    Html,
    folded,
    join,
    passed_badge,
    table,
    tag,
)
from osa_runtime.verification.page.parties import (
    largest_norm,
    other_name,
    worst_defect,
    worst_error,
    worst_stretch,
)


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


def bisection_facts(certificate: Certificate) -> Html:
    found = certificate.bisection
    if found is None:
        return Html("")
    facts = [("first wrong signal behind", found.cumulative or "no part"), ("on the case", found.case)]
    if certificate.kind != "compare":
        facts.insert(0, ("wrong by itself", found.alone or "no part"))
    lines = [tag("dl", *(part for name, value in facts for part in (tag("dt", name), tag("dd", tag("code", value)))))]
    if found.repro is not None and found.repro.startswith("not written"):
        lines.append(tag("p", f"The folder that reproduces it was {found.repro}"))
    elif found.repro is not None:
        lines.append(tag("p", "This folder holds the part alone, its inputs and what should come out:"))
        lines.append(tag("pre", tag("code", f"python {found.repro}/reproduce.py")))
    return join(lines)
