"""Static ranges, measured again on the examples that they come from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from osa_runtime.artifact import Artifact
from osa_runtime.errors import InputError
from osa_runtime.quantization import quantize
from osa_runtime.verification import VerifySettings, verify
from osa_runtime.verification.structure.check import check_ranges

pytestmark = pytest.mark.slow

Deep = Callable[..., Path]


@pytest.fixture(scope="module")
def examples(home: Path) -> Path:
    images = np.random.default_rng(0).normal(size=(32, 1, 8, 8)).astype(np.float32)
    np.savez(home / "examples.npz", images=images)
    return home / "examples.npz"


@pytest.fixture(scope="module")
def static(home: Path, deep: Deep, examples: Path) -> Artifact:
    return quantize(deep("vit"), home / "static", activations="static", calibration=examples).artifact


def test_honest_ranges_are_proven(static: Artifact, deep: Deep, examples: Path) -> None:
    check = check_ranges(Artifact.open(deep("vit")), static.manifest, examples)
    assert check.passed, check.detail


@pytest.mark.parametrize("factor", [0.98, 1.02, 5.0])
def test_a_range_that_was_changed_a_little_is_named(
    factor: float, static: Artifact, deep: Deep, examples: Path
) -> None:
    recorded = static.manifest.quantization
    name, (low, high) = list(recorded.activation_ranges.items())[3]
    changed = recorded.activation_ranges | {name: (low, factor * high)}
    described = dataclasses.replace(recorded, activation_ranges=changed)
    manifest = dataclasses.replace(static.manifest, quantization=described)
    check = check_ranges(Artifact.open(deep("vit")), manifest, examples)
    assert not check.passed
    assert f"the range of {name} is " in check.detail


def test_other_examples_are_told_by_their_hash(static: Artifact, deep: Deep, tmp_path: Path) -> None:
    np.savez(
        tmp_path / "other.npz", images=np.ones((32, 1, 8, 8), np.float32) * np.linspace(-1, 1, 8, dtype=np.float32)
    )
    check = check_ranges(Artifact.open(deep("vit")), static.manifest, tmp_path / "other.npz")
    assert not check.passed
    assert "calibration.sha256 is " in check.detail


def test_the_whole_verification_has_the_check(
    static: Artifact, checkpoint: Callable[[str], Path], examples: Path
) -> None:
    settings = VerifySettings(quick=True, batches=[2], calibration=examples)
    certificate = verify(static.folder, checkpoint("vit"), settings).certificate
    assert next(check for check in certificate.checks if check.name == "ranges").passed


def test_an_artifact_without_static_ranges_takes_no_examples(
    deep: Deep, checkpoint: Callable[[str], Path], examples: Path
) -> None:
    with pytest.raises(InputError, match="is not such an artifact"):
        verify(deep("vit"), checkpoint("vit"), VerifySettings(calibration=examples))
