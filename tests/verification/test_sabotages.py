"""Every sabotage is told from a fresh export, and every one fails a whole verification, which names what is wrong.

The first is tried with most of them in every run of the tests, the second with a few of each format; ``make test-long``
verifies them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sabotaged import Bases, Sabotage, accusations
from sabotages import SABOTAGES
from structures import Compare, comparing

pytestmark = pytest.mark.slow

# In every run of the tests, by format: whole verifications, and comparisons. A program of torch.export loads slowly.
USUAL = {"onnx": 8, "torchscript": 5, "pt2": 1, "int8": 2}
COMPARED = {"pt2": 4}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    return Bases(tmp_path_factory.mktemp("sabotages"))


@pytest.fixture(scope="module")
def fresh(bases: Bases) -> Compare:
    return comparing(bases.home, bases.checkpoint)


def _parameters(usual: dict[str, int]) -> Iterator[object]:
    for index, sabotage in enumerate(SABOTAGES):
        kind = sabotage.format.partition(",")[0]
        earlier = [one for one in SABOTAGES[:index] if one.format.partition(",")[0] == kind]
        marks = pytest.mark.long if len(earlier) >= usual.get(kind, len(SABOTAGES)) else ()
        yield pytest.param(sabotage, marks=marks, id=f"{sabotage.fault} ({sabotage.format})".replace(" ", "-"))


@pytest.mark.parametrize("sabotage", list(_parameters(COMPARED)))
def test_it_is_told_from_a_fresh_export(sabotage: Sabotage, bases: Bases, fresh: Compare, tmp_path: Path) -> None:
    broken = sabotage.breaking(bases.artifact(sabotage.base, **sabotage.options), tmp_path / "broken")
    (check,) = fresh(broken, sabotage.base).checks
    assert (check.name, check.passed) == ("structure", False)


@pytest.mark.parametrize("sabotage", list(_parameters(USUAL)))
def test_it_fails_and_is_named(sabotage: Sabotage, bases: Bases, tmp_path: Path) -> None:
    certificate = sabotage.judged(bases, tmp_path / "broken")
    assert certificate.verdict == "fail"
    assert any(map(sabotage.names, accusations(certificate))), certificate.failures()


def test_there_are_many_in_every_format() -> None:
    formats = [sabotage.format.partition(",")[0] for sabotage in SABOTAGES]
    assert len(SABOTAGES) >= 40
    assert all(formats.count(kind) >= 8 for kind in ("onnx", "torchscript", "pt2"))
