"""Every sabotage fails, and what is wrong is named: by the comparison with a fresh export, or by the part.

``make test-long`` runs them all.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sabotaged import Bases, Sabotage, accusations
from sabotages import SABOTAGES


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    return Bases(tmp_path_factory.mktemp("sabotages"))


def _parameter(index: int, sabotage: Sabotage) -> object:
    """A torch.export program takes up to a minute to verify: a few of its sabotages run with the other tests."""
    earlier = [one for one in SABOTAGES[:index] if one.format == sabotage.format == "pt2"]
    name = f"{sabotage.fault} ({sabotage.format})".replace(" ", "-")
    return pytest.param(sabotage, marks=pytest.mark.long if sabotage.long or len(earlier) >= 3 else (), id=name)


@pytest.mark.parametrize("sabotage", [_parameter(index, one) for index, one in enumerate(SABOTAGES)])
def test_it_fails_and_is_named(sabotage: Sabotage, bases: Bases, tmp_path: Path) -> None:
    certificate = sabotage.judged(bases, tmp_path / "broken")
    assert certificate.verdict == "fail"
    assert any(map(sabotage.names, accusations(certificate))), certificate.failures()


def test_there_are_many_in_every_format() -> None:
    formats = [sabotage.format.partition(",")[0] for sabotage in SABOTAGES]
    assert len(SABOTAGES) >= 40
    assert all(formats.count(kind) >= 8 for kind in ("onnx", "torchscript", "pt2"))
