"""A session on CUDA runs there or says why not; the tests with the marker ``gpu`` need a device."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from osa_runtime import DeviceError, load
from osa_runtime.runtime import device, onnx_session
from osa_runtime.runtime.device import ProviderStatus
from small_models import MODELS, feeds

Exported = Callable[[str, str], Path]
CUDA = device.CUDA_PROVIDER


def needs_cuda(kind: str) -> pytest.MarkDecorator:
    if kind == "onnx":
        problem = device.onnx_cuda_problem() if device.driver_loads() else "no NVIDIA driver on this machine"
    else:
        torch = pytest.importorskip("torch")
        problem = device.torch_cuda_problem(torch, 0)
    return pytest.mark.skipif(problem is not None, reason=str(problem))


def pretend(monkeypatch: pytest.MonkeyPatch, *, driver: bool, listed: tuple[str, ...] = (CUDA,), **status: str) -> None:
    monkeypatch.setattr(device, "listed_providers", lambda: listed)
    monkeypatch.setattr(device, "_probe_once", lambda: ProviderStatus(CUDA, False, **status))
    monkeypatch.setattr(device, "driver_loads", lambda: driver)


def test_the_wheel_without_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, driver=True, listed=("CPUExecutionProvider",))
    monkeypatch.setattr(device, "installed_wheels", lambda: {"onnxruntime": "1.31.1"})
    problem = device.onnx_cuda_problem() or ""
    assert "onnxruntime 1.31.1 is built without CUDA" in problem
    assert 'pip install "osa-runtime[cuda]"' in problem


@pytest.mark.parametrize(
    ("driver", "remedy"), [(True, 'pip install "onnxruntime-gpu[cuda,cudnn]"'), (False, "Install the driver")]
)
def test_a_missing_library_or_driver_is_named(monkeypatch: pytest.MonkeyPatch, driver: bool, remedy: str) -> None:
    pretend(monkeypatch, driver=driver, reason="the library libcublas.so is missing")
    problem = device.onnx_cuda_problem() or ""
    assert "libcublas.so is missing" in problem
    assert remedy in problem
    assert "or choose the device cpu" in problem


def fake_torch(version: str | None, available: bool, count: int = 0) -> SimpleNamespace:
    cuda = SimpleNamespace(is_available=lambda: available, device_count=lambda: count)
    return SimpleNamespace(__version__="2.13.0", version=SimpleNamespace(cuda=version), cuda=cuda)


@pytest.mark.parametrize(
    ("torch", "message"),
    [
        (fake_torch(None, False), "is built without CUDA. Install a CUDA build"),
        (fake_torch("13.0", False), "finds no CUDA device .*NVIDIA driver"),
        (fake_torch("13.0", True, 2), "there are 2 CUDA devices.*cuda:0 to cuda:1"),
    ],
    ids=["build", "driver", "number"],
)
def test_what_torch_lacks_is_named(torch: SimpleNamespace, message: str) -> None:
    problem = device.torch_cuda_problem(torch, 2) or ""
    assert re.search(message, problem)
    assert device.torch_cuda_problem(fake_torch("13.0", True, 3), 2) is None


@pytest.fixture
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_session, "onnx_cuda_problem", lambda: "a library is missing.")
    monkeypatch.setattr(
        "osa_runtime.runtime.torch_session.torch_cuda_problem", lambda torch, i: "a library is missing."
    )


@pytest.mark.usefixtures("without_cuda")
@pytest.mark.parametrize("kind", ["onnx", "torchscript"])
def test_cuda_that_cannot_be_used_is_an_error_unless_allowed(exported: Exported, kind: str) -> None:
    folder = exported("vit", kind)
    with pytest.raises(DeviceError, match="cannot run on cuda:1: a library is missing"):
        load(folder, device="cuda:1")
    with pytest.warns(RuntimeWarning, match="cuda:0 was requested, but the model runs on the CPU") as caught:
        session = load(folder, device="cuda", allow_fallback=True)
    assert caught[0].filename == __file__
    assert session.placement.fell_back
    assert (session.placement.requested, session.placement.device) == ("cuda:0", "cpu")
    assert "a library is missing" in str(session.placement.note)
    assert session.run(feeds("vit"))["logits"].shape == (3, 10)


@pytest.mark.skipif(device.driver_loads(), reason="there is an NVIDIA driver on this machine")
def test_a_fallback_that_onnx_runtime_keeps_quiet_about_is_found(
    exported: Exported, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(onnx_session, "onnx_cuda_problem", lambda: None)
    with pytest.raises(DeviceError, match="cannot run on cuda:0"):
        load(exported("vit", "onnx"), device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", [pytest.param(k, marks=needs_cuda(k)) for k in ("onnx", "torchscript", "pt2")])
def test_cuda_agrees_with_the_cpu(exported: Exported, model: str, kind: str) -> None:
    with load(exported(model, kind)) as cpu, load(exported(model, kind), device="cuda") as cuda:
        assert cuda.placement.device == "cuda:0"
        assert not cuda.placement.fell_back
        for batch in (1, 3):
            x = feeds(model, batch)
            # Without TF32 the two differ by the order of sums only.
            np.testing.assert_allclose(cuda.run(x)["logits"], cpu.run(x)["logits"], rtol=0, atol=2e-5)


@pytest.mark.gpu
@needs_cuda("onnx")
def test_nodes_on_the_cpu_are_reported(exported: Exported) -> None:
    with load(exported("vit", "onnx"), device="cuda") as session:
        assert session.placement.provider == CUDA
        assert session.placement.cpu_nodes is not None
        assert not [node for node in session.placement.cpu_nodes if node.endswith("(MatMul)")]


@pytest.mark.gpu
@needs_cuda("onnx")
def test_a_device_number_that_does_not_exist(exported: Exported) -> None:
    with pytest.raises(DeviceError, match="cuda:99"):
        load(exported("vit", "onnx"), device="cuda:99")
