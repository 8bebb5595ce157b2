"""The top of the page: the verdict, what failed, and the figures that matter most."""

from __future__ import annotations

import datetime

from osa_runtime.parity import wording
from osa_runtime.parity.certificate import Certificate
from osa_runtime.verification.page.cards import name_of
from osa_runtime.verification.page.markup import Html, folded, join, number, tag
from osa_runtime.verification.page.parties import other_name, outputs, portion, share, worst_defect

SHOWN_FAILURES = 12
LONG = 600  # characters; what is longer scrolls in its own box


def summary(certificate: Certificate) -> Html:
    return join([_verdict(certificate), _failures(certificate), _notes(certificate), _tiles(certificate)])


def title(certificate: Certificate) -> str:
    word = {"compare": "comparison", "consistency": "consistency"}.get(certificate.kind, "verification")
    return f"{wording.word(certificate)} · {name_of(certificate.subject)} · {word}"


def _verdict(certificate: Certificate) -> Html:
    mark = {"pass": "✓", "consistent": "≈", "fail": "✗"}[certificate.verdict]
    proof = [tag("strong", f"{certificate.basis}: "), wording.meaning(certificate), "."]
    about = [tag("p", _against(certificate)), tag("p", *proof), tag("p", _when(certificate.created))]
    if certificate.signature is not None:
        about.append(tag("p", "Signed (Ed25519) by the key ", tag("span", certificate.signature.key, class_="hash")))
    text = tag("div", tag("h1", name_of(certificate.subject)), *about)
    big = tag("div", f"{mark} {wording.word(certificate)}", class_="word")
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
