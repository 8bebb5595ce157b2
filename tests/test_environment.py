"""Cores, versions, and the message on missing packages."""

from __future__ import annotations

import os
import sys

import pytest

from osa_runtime import MissingDependencyError, __version__
from osa_runtime.environment import installed_version, require, usable_cores


def test_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5}, raising=False)
    assert usable_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1


def test_versions_of_packages() -> None:
    assert installed_version("osa-runtime") == __version__
    assert installed_version("not-a-package") is None


def test_missing_packages_are_named_together_with_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    require("Training", "json", extra="train")
    for name in ("sklearn", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError) as error:
        require("Training", "sklearn", "json", "matplotlib", extra="train")
    expected = (
        'Training needs scikit-learn and matplotlib, which are not installed. Run: pip install "osa-runtime[train]".'
    )
    assert str(error.value) == expected
