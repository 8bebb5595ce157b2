"""By what rule it was judged, and how to do it again."""

from __future__ import annotations

import shlex
from typing import Any

from osa_runtime.parity.certificate import Certificate
from osa_runtime.parity.tolerances import FEW, HARMLESS_NORM, LOST, SHARE
from osa_runtime.verification.page.cards import name_of
from osa_runtime.verification.page.markup import Html, join, number, tag
from osa_runtime.verification.page.parties import other_name, outputs, tolerances


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
            f" Where {other_name(certificate)} is itself beyond that, the artifact may be {SHARE:g} times as far, or"
        )
        said += (
            " as far as rounding explains: it is measured how far float64 moves when weights and inputs change by as"
        )
        said += (
            f" much as rounding changes them. Where that is more than {LOST:g}, no digits are left, and nothing can be"
        )
        said += f" decided up to {FEW:g} times of it; beyond, the output fails. Rows are judged one by one."
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
    facts = {key: value for key, value in settings.items() if value is not None and value is not False}
    lines.append(tag("dl", *(part for k, v in facts.items() for part in (tag("dt", k), tag("dd", _value(v))))))
    return join(lines)


def _later(seed: Any) -> str:
    return str(seed + 1000) if isinstance(seed, int) else "another"


def _value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def command(certificate: Certificate) -> str:
    """The command line; what the certificate cannot know stands in capitals."""
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
