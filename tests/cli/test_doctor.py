"""``osa doctor``: its text, its JSON, and its exit code for healthy and broken machines."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from osa_runtime.cli import doctor as diagnosis
from osa_runtime.cli.main import app
from osa_runtime.errors import MissingDependencyError
from osa_runtime.runtime import ProviderStatus

CPU = ProviderStatus("CPUExecutionProvider", True)
NO_CPU = ProviderStatus("CPUExecutionProvider", False, "crashed")
NO_CUDA = ProviderStatus("CUDAExecutionProvider", False, "the library libcudart.so is missing")
GPU_WHEEL = {"onnxruntime-gpu": "1.31.1"}

runner = CliRunner()


def pretend(monkeypatch: pytest.MonkeyPatch, wheels: dict[str, str], *providers: ProviderStatus) -> None:
    monkeypatch.setattr(diagnosis, "installed_wheels", lambda: wheels)
    monkeypatch.setattr(diagnosis, "probe_providers", lambda: providers)


def test_this_machine_is_healthy() -> None:
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert "Healthy" in result.output
    assert "CPUExecutionProvider       loads" in result.output


def test_json_is_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, GPU_WHEEL, NO_CUDA, CPU)
    result = runner.invoke(app, ["doctor", "--json"])
    report = json.loads(result.output)
    assert report["healthy"] is True
    assert report["providers"][0] == {"name": NO_CUDA.name, "loads": False, "reason": NO_CUDA.reason}
    assert {"python", "packages", "threads", "torch_cuda", "problems", "notes"} <= set(report)


def test_cuda_that_does_not_load_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, GPU_WHEEL, NO_CUDA, CPU)
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert "does not load: the library libcudart.so is missing" in result.output
    assert "note: CUDA does not load" in result.output


@pytest.mark.parametrize(
    ("wheels", "providers", "remedy"),
    [
        ({}, (), 'pip install "osa-runtime[cpu]"'),
        ({"onnxruntime": "1", "onnxruntime-gpu": "1"}, (CPU,), "pip uninstall -y onnxruntime onnxruntime-gpu"),
        (GPU_WHEEL, (NO_CPU,), "pip install --force-reinstall onnxruntime-gpu"),
    ],
    ids=["no wheel", "two wheels", "nothing loads"],
)
def test_broken_machine_leaves_with_3_and_a_remedy(
    monkeypatch: pytest.MonkeyPatch, wheels: dict[str, str], providers: tuple[ProviderStatus, ...], remedy: str
) -> None:
    pretend(monkeypatch, wheels, *providers)
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 3
    assert "problem: " in result.output
    assert remedy in result.output
    assert "Healthy" not in result.output


def test_wheel_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged() -> None:
        raise MissingDependencyError("Reinstall it.")

    pretend(monkeypatch, GPU_WHEEL)
    monkeypatch.setattr(diagnosis, "probe_providers", damaged)
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 3
    assert "problem: Reinstall it." in result.output


def test_works_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, GPU_WHEEL, CPU)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "torch is not installed" in runner.invoke(app, ["doctor"]).output


def test_survives_a_torch_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(name: str) -> None:
        raise OSError("libtorch_cpu.so: cannot open shared object file")

    pretend(monkeypatch, GPU_WHEEL, CPU)
    monkeypatch.setattr(diagnosis.importlib, "import_module", damaged)
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert "torch cannot be imported: libtorch_cpu.so" in result.output
