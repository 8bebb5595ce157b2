"""What may be chosen when models are packed for Triton."""

from __future__ import annotations

from dataclasses import dataclass

from osa_runtime.errors import InputError

BACKENDS = ("onnxruntime", "python")
DEVICES = ("cpu", "cuda")
LARGEST = 2**31 - 1  # Triton's sizes are of 32 bits
LARGEST_VERSION = 10**18 - 1


@dataclass(frozen=True)
class TritonSettings:
    """``preferred`` are sizes of batches that Triton waits for; ``threads`` None leaves the number to the server."""

    backend: str = "onnxruntime"
    version: int = 1
    max_batch: int = 32
    preferred: tuple[int, ...] = ()
    max_delay_us: int = 0
    instances: int = 1
    device: str = "cpu"
    threads: int | None = None
    warm_up: bool = True

    def __post_init__(self) -> None:
        _check_choice("backend", self.backend, BACKENDS)
        _check_choice("device", self.device, DEVICES)
        _check_range("version", self.version, 1, LARGEST_VERSION)
        _check_range("max_batch", self.max_batch, 1, LARGEST)
        _check_range("max_delay_us", self.max_delay_us, 0, LARGEST)
        _check_range("instances", self.instances, 1, LARGEST)
        for size in self.preferred:
            _check_range("preferred", size, 1, self.max_batch)
        if self.threads is not None:
            _check_range("threads", self.threads, 1, 4096)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name}={value!r}: expected {' or '.join(choices)}.")


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InputError(f"{name}={value!r}: expected a whole number from {least} to {most}.")
