"""Where a model shall run, and what happens when it cannot run there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from osa_runtime.errors import DeviceError, InputError

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
class LoadOptions:
    """How a session shall be started. ``threads`` None leaves the number to the runtime.

    ``profile`` is where ONNX Runtime shall write its trace of every node: the start of a file name.
    ``count_squarings`` makes an ONNX session count the squarings of each layer, where its graph tells.
    """

    device: Device = CPU
    threads: int | None = None
    allow_fallback: bool = False
    profile: Path | None = None
    count_squarings: bool = False

    def __post_init__(self) -> None:
        valid = self.threads is None or (type(self.threads) is int and 1 <= self.threads <= 4096)
        if not valid:
            raise InputError(f"threads is {self.threads!r}, expected a whole number of at least 1, or None.")

    def fall_back(self, problem: str) -> str:
        """The note on a fallback to the CPU, where the caller has allowed one; otherwise the error."""
        if not self.allow_fallback:
            raise DeviceError(f"The model cannot run on {self.device}: {problem}")
        return f"{self.device} was asked for, but the model runs on the CPU: {problem}"


@dataclass(frozen=True)
class DeviceOptions:
    """On what a model is asked to run."""

    device: str = "cpu"
    threads: int | None = None
    allow_fallback: bool = False


@dataclass(frozen=True)
class Placement:
    """Where a session really runs.

    ``cpu_nodes`` are the nodes that run on the CPU in a session on CUDA, None where the runtime does not tell; some
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
