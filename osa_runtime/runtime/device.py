"""The device of a model, requested and actual, and the execution providers of ONNX Runtime that load.

``onnxruntime.get_available_providers()`` lists what the wheel was built with: on a machine without CUDA the GPU
wheel still lists CUDAExecutionProvider, logs an error and runs on the CPU. Here each one is tried.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osa_runtime.environment import package_versions
from osa_runtime.errors import DeviceError, InputError, MissingDependencyError

_DEVICE = re.compile(r"(cpu)|cuda(?::(\d{1,3}))?")


@dataclass(frozen=True)
class Device:
    kind: str
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


CPU = Device("cpu")


def parse_device(text: str) -> Device:
    match = _DEVICE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InputError(f"Unknown device {text!r}; expected cpu, cuda, or cuda:1 for the second GPU.")
    return CPU if match.group(1) else Device("cuda", int(match.group(2) or 0))


@dataclass(frozen=True)
class LoadSettings:
    """Settings of a new session. ``threads`` None leaves the number to the runtime.

    ``profile`` is the start of the file name for ONNX Runtime's trace of every node.
    ``count_squarings`` makes an ONNX session count the squarings of each layer, where its graph has the count.
    ``cache`` lets an ONNX session on the CPU start from the copy that an earlier one optimised.
    """

    device: Device = CPU
    threads: int | None = None
    allow_fallback: bool = False
    profile: Path | None = None
    count_squarings: bool = False
    cache: bool = True

    def __post_init__(self) -> None:
        valid = self.threads is None or (type(self.threads) is int and 1 <= self.threads <= 4096)
        if not valid:
            raise InputError(f"threads is {self.threads!r}, expected a whole number of at least 1, or None.")

    def fall_back(self, problem: str) -> str:
        """The note on a fallback to the CPU, if the caller has allowed one; otherwise a DeviceError."""
        if not self.allow_fallback:
            raise DeviceError(f"The model cannot run on {self.device}: {problem}")
        return f"{self.device} was requested, but the model runs on the CPU: {problem}"


@dataclass(frozen=True)
class DeviceSettings:
    """The device on which a model should run, and the runtime, where it is not that of its format."""

    device: str = "cpu"
    threads: int | None = None
    allow_fallback: bool = False
    runtime: str | None = None


@dataclass(frozen=True)
class Placement:
    """The device on which a session actually runs.

    ``cpu_nodes`` are the nodes that run on the CPU in a session on CUDA, None if the runtime does not report them; some
    of them are there by design, since ONNX Runtime computes shapes on the CPU. ``note`` explains a fallback.
    """

    requested: str
    device: str
    provider: str
    cpu_nodes: tuple[str, ...] | None = ()
    note: str | None = None

    @property
    def fell_back(self) -> bool:
        return self.note is not None


# Every distribution that installs files under the same name `onnxruntime`.
WHEELS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-migraphx",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
    "onnxruntime-rocm",
    "onnxruntime-training",
)


def installed_wheels() -> dict[str, str]:
    """The installed distributions of ONNX Runtime and their versions."""
    return package_versions(WHEELS)


def wheel_problem(wheels: dict[str, str] | None = None) -> str | None:
    """The problem with the installed wheels and its remedy, or None if exactly one is installed."""
    wheels = installed_wheels() if wheels is None else wheels
    if not wheels:
        return (
            "ONNX Runtime is not installed. Install it with "
            '`pip install "osa-runtime[cpu]"`, or `pip install "osa-runtime[cuda]"` for NVIDIA GPUs.'
        )
    if len(wheels) == 1:
        return None
    listed = " and ".join(f"{name} {version}" for name, version in wheels.items())
    return (
        f"{listed} are installed together and overwrite each other's files. "
        f"Remove all of them, then install one: `pip uninstall -y {' '.join(wheels)}`, "
        'then `pip install "osa-runtime[cpu]"` or `pip install "osa-runtime[cuda]"`.'
    )


PROBE = Path(__file__).with_name("probe.py")
PROBE_TIMEOUT = 60.0  # seconds; the first CUDA start on a cold machine takes several

_ANSI = re.compile(r"\x1b?\[[0-9;]*m")
_MISSING_LIBRARY = re.compile(r"with error: (\S+): cannot open shared object file")


@dataclass(frozen=True)
class ProviderStatus:
    """The status of one provider on this machine; ``reason`` explains why it does not load."""

    name: str
    loads: bool
    reason: str | None = None


def listed_providers() -> tuple[str, ...]:
    """The providers that the installed wheel was built with, whether they load or not."""
    try:
        ort = importlib.import_module("onnxruntime")
        return tuple(ort.get_available_providers())
    except (ImportError, AttributeError) as error:  # AttributeError: a half-removed wheel imports as an empty namespace
        problem = wheel_problem() or f"ONNX Runtime is installed and cannot be imported ({error}). Reinstall it."
        raise MissingDependencyError(problem) from error


def probe_providers() -> tuple[ProviderStatus, ...]:
    """Try every provider that the installed wheel lists."""
    return tuple(probe_provider(name) for name in listed_providers())


def probe_provider(name: str) -> ProviderStatus:
    """Try one provider in a child process, where a crash or its log output does no harm."""
    try:
        child = ask("failure", name)
    except subprocess.TimeoutExpired:
        return ProviderStatus(name, False, f"did not start within {PROBE_TIMEOUT:.0f} s")
    if child.returncode != 0:
        return ProviderStatus(name, False, f"crashed with exit code {child.returncode} while starting")
    failure = answer_of(child)
    return ProviderStatus(name, failure is None, None if failure is None else _reason(failure, child.stderr))


def ask(question: str, provider: str) -> subprocess.CompletedProcess[str]:
    """Run the probe: its ``failure`` or its ``kernels``."""
    # -P: the probe's folder must not come first on the path, where its modules could shadow others
    command = [sys.executable, "-P", str(PROBE), question, provider]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PROBE_TIMEOUT, check=False)


def answer_of(child: subprocess.CompletedProcess[str]) -> Any:
    """The answer of a probe that exited with 0."""
    try:
        return json.loads(child.stdout.strip().rpartition("\n")[2])
    except ValueError:
        return "no answer"


def _reason(answer: str, log: str) -> str:
    """The cause rather than its effect: a missing library that the log names, or a silent fallback."""
    missing = _MISSING_LIBRARY.search(_ANSI.sub("", log))
    if missing:
        return f"the library {missing.group(1)} is missing"
    if "fallback to CPU EP has been explicitly disabled" in answer:
        return "ONNX Runtime would run the model on the CPU instead"
    return answer


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
