"""Who took part: the artifact, what it was compared with, and the packages that ran them."""

from __future__ import annotations

from typing import Any

from osa_runtime.parity.certificate import Certificate
from osa_runtime.verification.page.markup import Html, tag


def cards(certificate: Certificate) -> Html:
    found = [_card("Artifact", certificate.subject)]
    if certificate.reference is not None:
        heading = "Reference artifact" if certificate.kind == "compare" else "Checkpoint"
        found.append(_card(heading, certificate.reference))
    found.append(tag("div", tag("h3", "Versions"), _list(certificate.versions), class_="card"))
    return tag("div", *found, class_="cards")


def _card(heading: str, party: dict[str, Any]) -> Html:
    facts: dict[str, object] = {"name": party.get("name"), "model": party.get("model")}
    facts["format"] = ", ".join(str(party[key]) for key in ("format", "dtype") if party.get(key))
    facts["inputs"] = "; ".join(map(str, party.get("inputs") or ()))
    facts["outputs"] = "; ".join(map(str, party.get("outputs") or ()))
    facts["attention"] = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in (party.get("osa") or {}).items())
    facts["made from"] = (party.get("source") or {}).get("model")
    facts["ran on"] = (party.get("placement") or {}).get("provider")
    hashes = dict(party.get("files") or {}) | ({"sha256": party["sha256"]} if party.get("sha256") else {})
    facts |= {name: tag("span", digest, class_="hash") for name, digest in hashes.items()}
    return tag("div", tag("h3", heading), _list(facts), class_="card")


def _list(facts: Any) -> Html:
    pairs = [(tag("dt", key), tag("dd", value)) for key, value in facts.items() if value]
    return tag("dl", *(part for pair in pairs for part in pair))


def name_of(party: dict[str, Any]) -> str:
    return str(party.get("name") or party.get("model") or "unnamed")
