"""None, one or several wheels of ONNX Runtime: only one is right."""

from __future__ import annotations

from importlib import metadata

import pytest

from osa_runtime.runtime import installed_wheels, wheel_problem


def test_this_environment_has_exactly_one() -> None:
    assert len(installed_wheels()) == 1
    assert wheel_problem() is None


def test_none_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", nothing)
    assert installed_wheels() == {}
    assert "osa-runtime[cpu]" in (wheel_problem() or "")


def test_two_say_how_to_get_back_to_one() -> None:
    problem = wheel_problem({"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.1"}) or ""
    assert "overwrite each other" in problem
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in problem
