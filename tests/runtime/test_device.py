"""The wheel of ONNX Runtime and its providers: tried for real, with a clear answer for all that can go wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from osa_runtime.errors import MissingDependencyError
from osa_runtime.runtime import device, installed_wheels, probe_provider, probe_providers, wheel_problem
from osa_runtime.runtime.probe import IDENTITY_MODEL


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


CUDA_LOG = (
    "\x1b[1;31m2026 [E:onnxruntime:Default] Failed to load library /x/libonnxruntime_providers_cuda.so "
    "with error: libcublasLt.so.13: cannot open shared object file: No such file or directory\n\x1b[m"
)


def fake_child(monkeypatch: pytest.MonkeyPatch, stdout: str = "", stderr: str = "", code: int = 0) -> None:
    done = subprocess.CompletedProcess([], code, stdout, stderr)
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: done)


def test_embedded_model_is_what_it_says() -> None:
    onnx = pytest.importorskip("onnx")
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    x, y = (helper.make_tensor_value_info(name, float32, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "probe", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    assert onnx.load_from_string(IDENTITY_MODEL) == model


def test_cpu_loads() -> None:
    status = probe_provider("CPUExecutionProvider")
    assert status.loads
    assert status.reason is None


@pytest.mark.slow
def test_probing_writes_nothing_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    statuses = {status.name: status for status in probe_providers()}
    assert statuses["CPUExecutionProvider"].loads
    assert all(status.loads or status.reason for status in statuses.values())
    assert capfd.readouterr() == ("", "")


def test_provider_that_the_wheel_does_not_know() -> None:
    status = probe_provider("NoSuchExecutionProvider")
    assert not status.loads
    assert "NoSuchExecutionProvider" in (status.reason or "")


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_child(monkeypatch, stdout=json.dumps("This session contains graph nodes ..."), stderr=CUDA_LOG)
    assert probe_provider("CUDAExecutionProvider").reason == "the library libcublasLt.so.13 is missing"


def test_silent_fallback_is_said_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_child(monkeypatch, stdout=json.dumps("... but fallback to CPU EP has been explicitly disabled by the user."))
    assert "on the CPU instead" in (probe_provider("AzureExecutionProvider").reason or "")


def test_crash_of_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_child(monkeypatch, code=-11)
    assert probe_provider("CUDAExecutionProvider").reason == "crashed with exit code -11 while starting"


def test_silent_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_child(monkeypatch, stdout="")
    assert probe_provider("CUDAExecutionProvider").reason == "no answer"


def test_hanging_probe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sleeper = tmp_path / "sleeper.py"
    sleeper.write_text("import time; time.sleep(30)")
    monkeypatch.setattr(device, "PROBE", sleeper)
    monkeypatch.setattr(device, "PROBE_TIMEOUT", 0.2)
    assert "did not start within" in (probe_provider("CUDAExecutionProvider").reason or "")


@pytest.mark.parametrize("module", [None, object()], ids=["not importable", "an empty namespace"])
def test_missing_or_damaged_onnxruntime(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    monkeypatch.setattr(device, "wheel_problem", lambda: None)
    with pytest.raises(MissingDependencyError, match="cannot be imported"):
        probe_providers()
