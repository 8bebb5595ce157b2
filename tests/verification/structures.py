"""Comparing structures without exporting the same reference again for each test."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from osa_runtime.artifact import Artifact
from osa_runtime.exporters.manifest_entries import is_static, recorded_options
from osa_runtime.manifest import Manifest
from osa_runtime.runtime.device import DeviceSettings
from osa_runtime.verification.expectation import Expectation
from osa_runtime.verification.structure.check import Structure, check_structure
from osa_runtime.verification.subject import Subject

Compare = Callable[[Path, str], Structure]


def comparing(home: Path, checkpoint: Callable[[str], Path]) -> Compare:
    """Exports are deterministic, which tests/exporters/test_determinism.py shows: one for each setting is enough."""
    known: dict[str, Artifact] = {}

    def compare(artifact: Path, model: str) -> Structure:
        expected = Expectation.of_checkpoint(checkpoint(model))

        def repeat(manifest: Manifest, _: Path) -> Artifact:
            key = str((model, is_static(manifest), sorted(recorded_options(manifest).items(), key=str)))
            if key not in known:
                known[key] = expected.repeat(manifest, home / f"again-{len(known)}")
            return known[key]

        subject = Subject.open(artifact, DeviceSettings())
        with subject.session:
            return check_structure(subject, dataclasses.replace(expected, repeat=repeat))

    return compare
