"""Which kernels an execution provider has: asked from ONNX Runtime itself, or from a table where that is impossible."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from osa_runtime.errors import InputError
from osa_runtime.runtime.cuda_kernels import CUDA_KERNELS, NEWEST_OPSET, PUBLISHED
from osa_runtime.runtime.wheels import installed_wheels

PROBE = Path(__file__).with_name("kernel_probe.py")
PROBE_TIMEOUT = 60.0  # seconds
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
OPEN_END = 2**31 - 1  # how ONNX Runtime writes "until the operator changes"


@dataclass(frozen=True)
class Kernel:
    """An implementation of one operator, for the operator's versions first to last and for some types.

    ``types`` maps names of type parameters, such as T, or of inputs and outputs, to the types that are implemented.
    """

    domain: str
    operator: str
    first: int
    last: int
    types: Mapping[str, frozenset[str]]

    def serves(self, need: KernelNeed) -> bool:
        # As ONNX Runtime does: without a last version, only the very version that the kernel was written for counts.
        in_range = self.first == need.version or (self.first < need.version <= self.last != OPEN_END)
        return in_range and all(need.types.get(name, frozenset()) <= types for name, types in self.types.items())


@dataclass(frozen=True)
class KernelNeed:
    """What one node asks for. ``version`` is the opset in which its operator last changed."""

    domain: str
    operator: str
    version: int
    types: Mapping[str, frozenset[str]]

    def in_float32(self) -> KernelNeed:
        types = {
            name: frozenset("tensor(float)" if t == "tensor(float16)" else t for t in used)
            for name, used in self.types.items()
        }
        return KernelNeed(self.domain, self.operator, self.version, types)


@dataclass(frozen=True)
class KernelList:
    """The kernels of one provider. What a partial list (``complete`` false) does not mention is unknown."""

    provider: str
    source: str
    kernels: tuple[Kernel, ...] = field(repr=False)
    complete: bool = True
    newest_version: int = OPEN_END

    @cached_property
    def _by_operator(self) -> Mapping[tuple[str, str], list[Kernel]]:
        found: defaultdict[tuple[str, str], list[Kernel]] = defaultdict(list)
        for kernel in self.kernels:
            found[kernel.domain, kernel.operator].append(kernel)
        return found

    def serves(self, need: KernelNeed) -> bool | None:
        """Whether there is a kernel; None where this list cannot know."""
        candidates = self._by_operator.get((need.domain, need.operator), [])
        if any(kernel.serves(need) for kernel in candidates):
            return True
        known = self.complete or (bool(candidates) and need.version <= self.newest_version)
        return False if known else None


def check_providers(names: Iterable[str]) -> None:
    for name in names:
        if name not in PROVIDERS:
            raise InputError(f"Unknown provider {name!r}; expected {' or '.join(PROVIDERS)}.")


def list_kernels(provider: str) -> KernelList:
    """The kernels of ``cpu`` or ``cuda``."""
    check_providers([provider])
    wheel = " ".join(f"{name} {version}" for name, version in installed_wheels().items())
    kernels = _ask(PROVIDERS[provider]) if wheel else ()
    if kernels:
        return KernelList(provider, f"asked from {wheel} on this machine", kernels)
    if provider == "cuda":
        table = tuple(_kernels(CUDA_KERNELS))
        return KernelList(provider, PUBLISHED, table, complete=False, newest_version=NEWEST_OPSET)
    reason = f"{wheel} does not list its kernels" if wheel else "ONNX Runtime is not installed here"
    return KernelList(provider, f"unknown: {reason}", (), complete=False)


def _ask(name: str) -> tuple[Kernel, ...]:
    """The kernels that ONNX Runtime lists, none where it cannot."""
    command = [sys.executable, "-P", str(PROBE), name]  # -P: the probe's folder must not shadow other modules
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return ()
    if child.returncode != 0:
        return ()
    return tuple(_kernels(json.loads(child.stdout.strip().rpartition("\n")[2])))


def _kernels(rows: Iterable[tuple[str, str, int, int, Mapping[str, Iterable[str]]]]) -> Iterable[Kernel]:
    for domain, operator, first, last, types in rows:
        yield Kernel(domain, operator, first, last, {name: frozenset(allowed) for name, allowed in types.items()})
