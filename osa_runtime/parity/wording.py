"""The name and the meaning of each verdict, for the console, the page and refusals."""

from __future__ import annotations

from osa_runtime.parity.certificate import Certificate

WORDS = {"pass": "PASS", "consistent": "CONSISTENT", "fail": "FAIL"}

SAME_STRUCTURE = (
    "graph, weights and settings are those of a fresh export of the reference, and the outputs agree with it on "
    "every case that could be decided"
)
SAME_NUMBERS = (
    "the outputs agree with the reference on every case that could be decided; the structure was not compared, so a "
    "fault that none of these cases meets would not be seen"
)
SAME_OUTPUTS = (
    "the outputs agree with the given ones on the given inputs; the structure was not compared, and nothing says "
    "where the given outputs come from"
)
SAME_ARTIFACTS = (
    "the two artifacts agree on every case that could be decided; whether the reference itself is right was not checked"
)
NO_CONTRADICTION = (
    "nothing contradicts itself: the outputs are finite, rows do not disturb each other, and attention agrees with "
    "its definition; the weights may be any, because it was not compared with a trained model"
)
WRONG = "at least one finding contradicts the reference, the manifest or the definition of the model"
UNDECIDED = "no case could be decided"


def word(certificate: Certificate) -> str:
    return WORDS[certificate.verdict]


def title(certificate: Certificate) -> str:
    """The verdict with its basis: "PASS (structure and numbers)"."""
    return word(certificate) if certificate.failed else f"{word(certificate)} ({certificate.basis})"


def meaning(certificate: Certificate) -> str:
    """The sentence on what the verdict proves."""
    if certificate.failed:
        return WRONG if certificate.failures() else UNDECIDED
    if certificate.basis == "no reference":
        return NO_CONTRADICTION
    if certificate.basis == "structure and numbers":
        return SAME_STRUCTURE
    if certificate.kind == "compare":
        return SAME_ARTIFACTS
    return SAME_NUMBERS if certificate.reference is not None else SAME_OUTPUTS
