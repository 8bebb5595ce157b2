"""What whole models must reach, and whether they did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from speed.model_artifacts import COMPILED, EAGER, ORT
from speed.model_contenders import ModelResult
from speed.models import DIGITS, VIT_S
from speed.verdict import Verdict, at_least, not_measured


def verdicts(results: Sequence[ModelResult], help_seconds: float | None) -> Iterator[Verdict]:
    by_name = {result.subject.name: result for result in results}
    vit = by_name.get(VIT_S.name)
    for peer, least in ((EAGER, 1.5), (COMPILED, 1.0)):
        for batch in (1, 8):
            meeting = vit.at(batch) if vit else None
            known = meeting is not None and ORT in meeting.contest and peer in meeting.contest
            found = meeting.contest.ratio(ORT, peer) if known and meeting else None
            yield at_least(f"ViT-S in ONNX Runtime, batch {batch}: {least:g} × as fast as {peer}", least, found)
    digits = by_name.get(DIGITS.name)
    yield _under(
        "the digits model is loaded",
        0.15,
        digits.footprints[ORT].load_seconds if digits and ORT in digits.footprints else None,
    )
    yield _under("`osa --help` answers", 0.5, help_seconds)


def _under(what: str, most: float, seconds: float | None) -> Verdict:
    target = f"{what} in less than {1e3 * most:.0f} ms"
    return not_measured(target) if seconds is None else Verdict(target, f"{1e3 * seconds:.0f} ms", seconds < most)
