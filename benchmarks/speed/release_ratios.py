"""The few ratios that a release is judged by: each from one contest, and cheap enough to be measured three times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from osa_runtime.benchmarking.contention import contention_doubt
from osa_runtime.benchmarking.figures import Spread
from speed import models
from speed.attention_contenders import PAPER, SGEMM, SOFTMAX, Operators
from speed.attention_inputs import Point
from speed.attention_targets import share_of_sgemm
from speed.baseline import Group, Reading
from speed.contest import Contest, Pace
from speed.exported_operator import PACKED, SEPARATE
from speed.model_artifacts import EAGER, ORT
from speed.model_artifacts import SOFTMAX as SOFTMAX_MODEL
from speed.model_contenders import OpenedModel
from speed.models import Subject

POINTS: dict[Point, tuple[str, ...]] = {
    Point(1, 17, 64): (PAPER, SOFTMAX),
    Point(1, 197, 64): (PAPER, SOFTMAX),
    Point(8, 197, 64): (PAPER, SOFTMAX),
    Point(1, 1024, 64): (PAPER, SOFTMAX),
    Point(1, 4096, 64): (PAPER, SOFTMAX, SGEMM),
    Point(1, 197, 32): (PAPER, SOFTMAX),
    Point(1, 4096, 32): (SOFTMAX, SGEMM),
}
QUICK_POINTS: dict[Point, tuple[str, ...]] = {Point(1, 17, 32): (PAPER, SOFTMAX), Point(1, 80, 32): (SGEMM,)}
SUBJECTS = (models.DIGITS, models.VIT_S)
PEERS = (EAGER, SOFTMAX_MODEL)

Say = Callable[[str], None]


class WrongAnswer(Exception):
    """The speed of a wrong answer is not compared."""


def release_groups(pace: Pace, threads: int, folder: Path, say: Say, quick: bool = False) -> list[Group]:
    """Exports and opens everything; the groups measure when they are called."""
    points = QUICK_POINTS if quick else POINTS
    groups: list[Group] = []
    for width in dict.fromkeys(point.width for point in points):
        say(f"exporting the operator, d = {width}")
        operators = Operators(width, threads, folder)
        groups += [
            partial(_attention, operators, point, peers, pace, say)
            for point, peers in points.items()
            if point.width == width
        ]
    for subject in models.QUICK[:1] if quick else SUBJECTS:
        opened = OpenedModel(subject, threads, folder / subject.name, say, (ORT, *PEERS))
        groups.append(partial(_model, opened, subject, pace))
    return groups


def _attention(operators: Operators, point: Point, peers: tuple[str, ...], pace: Pace, say: Say) -> dict[str, Reading]:
    say(f"operator: {point}")
    row = operators.measure(point, (PACKED, SEPARATE, *peers), pace)
    for name, error in row.wrong.items():
        raise WrongAnswer(f"{point}: {name} has a relative error of {error:.1e} against float64.")
    found = {}
    for ours in (PACKED, SEPARATE):
        for peer in (peer for peer in peers if peer != SGEMM):
            found[f"{point}: {ours} against {peer}"] = row.contest.ratio(ours, peer)
        share = share_of_sgemm(row, ours)
        if share is not None:
            found[f"{point}: {ours}, share of sgemm"] = share
    return _readings(found, row.contest)


def _model(opened: OpenedModel, subject: Subject, pace: Pace) -> dict[str, Reading]:
    meeting = opened.meet(1, pace)
    for name in (ORT, *PEERS):
        if name not in meeting.contest:
            reasons = "; ".join(f"{who}: {why}" for who, why in opened.missing.items())
            raise WrongAnswer(f"{subject.name}: there is no time of {name}. {reasons}")
    found = {f"{subject.name}, batch 1: {ORT} against {peer}": meeting.contest.ratio(ORT, peer) for peer in PEERS}
    return _readings(found, meeting.contest)


def _readings(ratios: Mapping[str, Spread], contest: Contest) -> dict[str, Reading]:
    doubt = contention_doubt(contest.busy, contest.threads)
    return {name: Reading(ratio, doubt) for name, ratio in ratios.items()}
