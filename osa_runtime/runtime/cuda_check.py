"""The reason why CUDA cannot be used here, with a remedy: the wheel, a library, the driver or the device's number."""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

from osa_runtime.runtime.providers import ProviderStatus, listed_providers, probe_provider
from osa_runtime.runtime.wheels import installed_wheels, wheel_problem

CUDA_PROVIDER = "CUDAExecutionProvider"
DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
ON_THE_CPU = "or choose the device cpu"


def onnx_cuda_problem() -> str | None:
    """The problem that keeps ONNX Runtime from CUDA, with its remedy; None if its CUDA provider starts."""
    if CUDA_PROVIDER not in listed_providers():
        wheels = installed_wheels()
        listed = " and ".join(f"{name} {version}" for name, version in wheels.items()) or "the installed ONNX Runtime"
        return (
            f"{listed} is built without CUDA. Replace the wheel: `pip uninstall -y {' '.join(wheels)}`, "
            f'then `pip install "osa-runtime[cuda]"`, {ON_THE_CPU}.'
        )
    status = _probe_once()
    if status.loads:
        return None
    return f"{wheel_problem() or status.reason}{_driver_remedy()}"


def torch_cuda_problem(torch: Any, index: int) -> str | None:
    """The problem that keeps PyTorch from the CUDA device ``index``, with its remedy."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA. Install a CUDA build of torch, {ON_THE_CPU}."
    if not torch.cuda.is_available():
        why = "the driver may be too old or the device hidden" if driver_loads() else f"{DRIVER} cannot be loaded"
        return f"torch {torch.__version__} finds no CUDA device ({why}). Repair the NVIDIA driver, {ON_THE_CPU}."
    count = torch.cuda.device_count()
    if index >= count:
        return f"there are {count} CUDA devices, numbered from 0. Choose cuda:0 to cuda:{count - 1}, {ON_THE_CPU}."
    return None


@functools.lru_cache(maxsize=1)
def _probe_once() -> ProviderStatus:
    # Starting CUDA takes seconds, and the result does not change during a process.
    return probe_provider(CUDA_PROVIDER)


def _driver_remedy() -> str:
    if not driver_loads():
        return f"; there is no NVIDIA driver either ({DRIVER} cannot be loaded). Install the driver, {ON_THE_CPU}."
    libraries = 'Install the libraries of CUDA with `pip install "onnxruntime-gpu[cuda,cudnn]"`'
    return f". {libraries}, {ON_THE_CPU}; see `osa doctor`."


def driver_loads() -> bool:
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return False
    return True
