"""The device of a model: the requested one, the fallback to the CPU, and the actual one."""

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
    """Options of a new session. ``threads`` None leaves the number to the runtime.

    ``profile`` is the start of the file name for ONNX Runtime's trace of every node.
    ``count_squarings`` makes an ONNX session count the squarings of each layer, where its graph has the count.
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
        """The note on a fallback to the CPU, if the caller has allowed one; otherwise a DeviceError."""
        if not self.allow_fallback:
            raise DeviceError(f"The model cannot run on {self.device}: {problem}")
        return f"{self.device} was requested, but the model runs on the CPU: {problem}"


@dataclass(frozen=True)
class DeviceOptions:
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
