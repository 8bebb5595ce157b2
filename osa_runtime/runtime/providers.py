"""The execution providers of ONNX Runtime that load, with the reason why others do not.

``onnxruntime.get_available_providers()`` lists what the wheel was built with: on a machine without CUDA the GPU
wheel still lists CUDAExecutionProvider, logs an error and runs on the CPU. Here each one is tried.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from osa_runtime.errors import MissingDependencyError
from osa_runtime.runtime.wheels import wheel_problem

PROBE = Path(__file__).with_name("provider_probe.py")
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
    # -P: the probe's folder must not come first on the path, where its modules could shadow others
    command = [sys.executable, "-P", str(PROBE), name]
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PROBE_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return ProviderStatus(name, False, f"did not start within {PROBE_TIMEOUT:.0f} s")
    if child.returncode != 0:
        return ProviderStatus(name, False, f"crashed with exit code {child.returncode} while starting")
    answer = child.stdout.strip().rpartition("\n")[2] or "fails: no answer"
    if answer == "loads":
        return ProviderStatus(name, True)
    return ProviderStatus(name, False, _reason(answer, child.stderr))


def _reason(answer: str, log: str) -> str:
    """The cause rather than its effect: a missing library that the log names, or a silent fallback."""
    missing = _MISSING_LIBRARY.search(_ANSI.sub("", log))
    if missing:
        return f"the library {missing.group(1)} is missing"
    if "fallback to CPU EP has been explicitly disabled" in answer:
        return "ONNX Runtime would run the model on the CPU instead"
    return answer.removeprefix("fails: ")
