"""The page of a certificate: one HTML file that needs nothing else."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from osa_runtime.atomic import atomic_file
from osa_runtime.parity.certificate import WORDS, Certificate, verdict_meaning
from osa_runtime.plotting import require_matplotlib
from osa_runtime.verification.page.cases import (
    cases_table,
    metrics_table,
    name_of,
    other_name,
    outputs,
    portion,
    share,
    worst_defect,
)
from osa_runtime.verification.page.figures import histogram_plot, sizes_plot
from osa_runtime.verification.page.heads import heads_plots
from osa_runtime.verification.page.markup import Html, folded, join, number, section, tag
from osa_runtime.verification.page.tables import (
    bisection_rows,
    checks_table,
    layers_table,
    reproduction,
    rule,
    units_plot,
    units_table,
)

POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # a browser refuses anything else


def write_page(certificate: Certificate, path: Path) -> None:
    """Write the certificate as an HTML page to ``path``, in place of an earlier one."""
    text = _document(finite(certificate))
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _document(certificate: Certificate) -> str:
    require_matplotlib()
    sections = _sections(certificate)
    links = tag("nav", *(tag("a", name, href=f"#{anchor}") for name, anchor, _ in sections))
    body = [summary(certificate), tag("p", rule(certificate)), cards(certificate), links]
    body += [section(name, anchor, content) for name, anchor, content in sections]
    return whole_page(title(certificate), body)


def whole_page(name: str, body: Sequence[object]) -> str:
    """A page in this style, with nothing outside it."""
    head = Html(
        '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    )
    head = join([head, tag("title", name), "\n", tag("style", Html(_style()))])
    page = tag("html", tag("head", head), "\n", tag("body", tag("main", *body)), lang="en")
    return f"<!doctype html>\n{page}\n"


def _sections(certificate: Certificate) -> list[tuple[str, str, Html]]:
    """Name, anchor and content of each section that is not empty."""
    layers, units = layers_table(certificate), units_table(certificate)
    found = [
        ("Where the fault is", "fault", bisection_rows(certificate)),
        ("Checks", "checks", checks_table(certificate)),
        ("Cases", "cases", join([cases_table(certificate), metrics_table(certificate)])),
        ("Parts", "parts", join([units_plot(certificate), units])),
        ("Orthogonality", "orthogonality", join([heads_plots(certificate), layers])),
        ("Error by size", "sizes", sizes_plot(certificate)),
        ("Spread of the errors", "spread", histogram_plot(certificate)),
        ("To repeat it", "repeat", reproduction(certificate)),
    ]
    return [entry for entry in found if entry[2]]


SHOWN_FAILURES = 12
LONG = 600  # characters; longer text scrolls in its own box


def summary(certificate: Certificate) -> Html:
    return join([_verdict(certificate), _failures(certificate), _notes(certificate), _tiles(certificate)])


def title(certificate: Certificate) -> str:
    word = {"compare": "comparison", "consistency": "consistency"}.get(certificate.kind, "verification")
    return f"{WORDS[certificate.verdict]} · {name_of(certificate.subject)} · {word}"


def _verdict(certificate: Certificate) -> Html:
    mark = {"pass": "✓", "consistent": "≈", "fail": "✗"}[certificate.verdict]
    proof = [tag("strong", f"{certificate.basis}: "), verdict_meaning(certificate), "."]
    about = [tag("p", _against(certificate)), tag("p", *proof), tag("p", _when(certificate.created))]
    if certificate.signature is not None:
        about.append(tag("p", "Signed (Ed25519) by the key ", tag("span", certificate.signature.key, class_="hash")))
    text = tag("div", tag("h1", name_of(certificate.subject)), *about)
    big = tag("div", f"{mark} {WORDS[certificate.verdict]}", class_="word")
    return tag("header", big, text, class_=f"verdict {certificate.verdict}")


def _against(certificate: Certificate) -> str:
    reference = certificate.reference
    if certificate.kind == "compare":
        return f"Compared with the artifact {name_of(reference or {})}"
    if reference is not None:
        kind = {"module": "a module,", "factory": "what a factory returned,"}.get(reference.get("kind", ""))
        return f"Verified against {kind or 'the checkpoint of'} a {name_of(reference)}, in eager PyTorch and in float64"
    if certificate.settings.get("given_outputs"):
        return "Verified against given outputs and the definition of orthogonal attention"
    return "Checked by itself, against the definition of orthogonal attention: no checkpoint was given"


def _when(created: str) -> str:
    try:
        moment = datetime.datetime.fromisoformat(created)
    except ValueError:
        return created
    return moment.strftime("%d %B %Y, %H:%M:%S ") + (moment.tzname() or "")


def _failures(certificate: Certificate) -> Html:
    if not certificate.failed:
        return Html("")
    found = certificate.failures() or ["no case could be decided: see the reasons under Cases"]
    items = [tag("li", _message(text)) for text in found]
    content = [tag("h3", f"What failed ({len(found)})"), tag("ul", *items[:SHOWN_FAILURES])]
    if len(items) > SHOWN_FAILURES:
        content.append(folded(f"{len(items) - SHOWN_FAILURES} more", tag("ul", *items[SHOWN_FAILURES:])))
    return tag("div", *content, class_="failures")


def _message(text: str) -> Html:
    return tag("span", text, class_="long" if len(text) > LONG else "")


def _notes(certificate: Certificate) -> Html:
    if not certificate.notes:
        return Html("")
    return tag(
        "div", tag("h3", "Notes"), tag("ul", *(tag("li", _message(note)) for note in certificate.notes)), class_="notes"
    )


def _tiles(certificate: Certificate) -> Html:
    tiles = [_case_tile(certificate), _error_tile(certificate), _class_tile(certificate)]
    tiles += [_layer_tile(certificate), _unit_tile(certificate), _accuracy_tile(certificate)]
    shown = [tag("div", tag("b", big), tag("span", small), class_="tile") for big, small in tiles if big]
    return tag("div", *shown, class_="tiles")


def _case_tile(certificate: Certificate) -> tuple[str, str]:
    verdicts = [case.verdict for case in certificate.cases]
    if not verdicts:
        return "no case", "nothing was run"
    rest = [f"{verdicts.count(v)} {v}" for v in ("fail", "undecided") if v in verdicts]
    right = "cases gave finite outputs" if certificate.basis == "no reference" else "cases pass"
    return f"{verdicts.count('pass')} of {len(verdicts)}", ", ".join([right, *rest])


def _error_tile(certificate: Certificate) -> tuple[str, str]:
    decided = [output for _, output in outputs(certificate) if output.verdict != "undecided"]
    shares = [found for output in decided if (found := share(output)) is not None]
    if not shares:
        return "", ""
    return portion(max(shares)), "of the tolerance, at most"


def _class_tile(certificate: Certificate) -> tuple[str, str]:
    shares = [(o.parity or {}).get("top1") for _, o in outputs(certificate)]
    known = [float(value) for value in shares if value is not None]
    return (f"{100 * min(known):.4g} %", f"same class as {other_name(certificate)}, at least") if known else ("", "")


def _layer_tile(certificate: Certificate) -> tuple[str, str]:
    mine = [layer for layer in certificate.layers if layer.party == "artifact"]
    defects = [found for layer in mine if (found := worst_defect(layer)) is not None]
    if not defects:
        return "", ""
    count = len({layer.layer for layer in mine})
    return number(max(defects)), f"largest ‖AᵀA − I‖, over {count} layer{'s' if count > 1 else ''} and all cases"


def _accuracy_tile(certificate: Certificate) -> tuple[str, str]:
    found = certificate.evaluation
    if found is None:
        return "", ""
    return f"{100 * found.accuracy.value:.2f} %", f"right, of {found.accuracy.samples} samples of {found.data}"


def _unit_tile(certificate: Certificate) -> tuple[str, str]:
    alone = [unit.passed for unit in certificate.units if unit.alone is not None or not unit.passed]
    if alone:
        return f"{sum(alone)} of {len(alone)}", "parts are right by themselves"
    return "", ""


def cards(certificate: Certificate) -> Html:
    found = [_card("Artifact", certificate.subject)]
    if certificate.reference is not None:
        heading = "Reference artifact" if certificate.kind == "compare" else "Checkpoint"
        found.append(_card(heading, certificate.reference))
    found.append(tag("div", tag("h3", "Versions"), _list(certificate.versions), class_="card"))
    return tag("div", *found, class_="cards")


def _card(heading: str, party: dict[str, Any]) -> Html:
    rows: dict[str, object] = {"name": party.get("name"), "model": party.get("model")}
    rows["format"] = ", ".join(str(party[key]) for key in ("format", "dtype") if party.get(key))
    rows["inputs"] = "; ".join(map(str, party.get("inputs") or ()))
    rows["outputs"] = "; ".join(map(str, party.get("outputs") or ()))
    rows["attention"] = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in (party.get("osa") or {}).items())
    rows["made from"] = (party.get("source") or {}).get("model")
    rows["ran on"] = (party.get("placement") or {}).get("provider")
    hashes = dict(party.get("files") or {}) | ({"sha256": party["sha256"]} if party.get("sha256") else {})
    rows |= {name: tag("span", digest, class_="hash") for name, digest in hashes.items()}
    return tag("div", tag("h3", heading), _list(rows), class_="card")


def _list(rows: Any) -> Html:
    pairs = [(tag("dt", key), tag("dd", value)) for key, value in rows.items() if value]
    return tag("dl", *(part for pair in pairs for part in pair))


def finite(certificate: Certificate) -> Certificate:
    """None for NaN and Inf, so that the page of a certificate is the same before and after it is written and read."""
    found: Certificate = _finite(certificate)
    return found


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_finite(item) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(
            value, **{f.name: _finite(getattr(value, f.name)) for f in dataclasses.fields(value)}
        )
    return value


def _style() -> str:
    return (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
