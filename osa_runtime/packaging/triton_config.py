"""Triton's configuration of one model: its settings, its content, and the text of config.pbtxt.

The text format of protobuf is written without the protobuf package: a mapping is a message, a list a repeated field,
``Word`` the name of an enum's value, and the rest a scalar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from osa_runtime.errors import ArtifactError, InputError
from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.serving.engine.batch_plan import BatchPlan
from osa_runtime.serving.protocol.tensors import PROTOCOL_NAMES

Message = Mapping[str, Any]

_ESCAPES = {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}


class Word(str):
    """A value that is written without quotes."""

    __slots__ = ()


def to_text(message: Message) -> str:
    return "".join(f"{line}\n" for line in _lines(message))


def map_entries(entries: Mapping[str, Any]) -> list[Message]:
    """A map field, which the text format writes as repeated pairs."""
    return [{"key": key, "value": value} for key, value in entries.items()]


def _lines(message: Message) -> Iterator[str]:
    for name, value in message.items():
        if isinstance(value, Mapping):
            yield from _block(name, value)
        elif _holds_messages(value):
            for item in value:
                yield from _block(name, item)
        elif isinstance(value, (list, tuple)):
            yield f"{name}: [ {', '.join(map(_scalar, value))} ]" if value else f"{name}: [ ]"
        else:
            yield f"{name}: {_scalar(value)}"


def _block(field: str, message: Message) -> Iterator[str]:
    yield f"{field} {{"
    yield from (f"  {line}" for line in _lines(message))
    yield "}"


def _holds_messages(value: object) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _scalar(value: object) -> str:
    if isinstance(value, Word):
        return str(value)
    if isinstance(value, str):
        return f'"{_escaped(value)}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    raise TypeError(f"{value!r} cannot be written to a configuration")


def _escaped(text: str) -> str:
    """Escape all but printable ASCII in octal, always with three digits, since a digit may follow."""
    return "".join(_ESCAPES.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in text.encode())


BACKENDS = ("onnxruntime", "python")
DEVICES = ("cpu", "cuda")
LARGEST = 2**31 - 1  # Triton's sizes are of 32 bits
LARGEST_VERSION = 10**18 - 1

Feeds = Mapping[str, NDArray[Any]]


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


KINDS = {"cpu": Word("KIND_CPU"), "cuda": Word("KIND_GPU")}
THREADS = {"onnxruntime": "intra_op_thread_count", "python": "threads"}
# TF32 keeps 10 of float32's 23 bits of mantissa; no output would agree with the reference any more.
FULL_PRECISION = {"name": "cuda", "parameters": map_entries({"use_tf32": "0"})}


@dataclass(frozen=True)
class TritonConfig:
    """``max_batch`` is 0 for a model that takes one request at a time, and then ``dims`` are whole shapes."""

    name: str
    interface: Interface
    settings: TritonSettings
    parameters: Mapping[str, str] = field(default_factory=dict)  # information for clients

    @property
    def batch_axis(self) -> str | None:
        """The axis along which Triton may join requests: dynamic, first everywhere, and 1 row is enough."""
        axis = BatchPlan(self.interface).batch_axis
        return axis if axis is not None and self.interface.least(axis) == 1 else None

    @property
    def max_batch(self) -> int:
        if self.batch_axis is None:
            return 0
        wanted, limit = self.settings.max_batch, self.interface.limit(self.batch_axis)
        return wanted if limit is None else min(wanted, limit)

    def text(self, samples: Feeds, files: Mapping[str, str]) -> str:
        """The text of config.pbtxt. ``files`` are the inputs' warm-up samples; without any there is no warm-up."""
        config: dict[str, Any] = {
            "name": self.name,
            "backend": self.settings.backend,
            "max_batch_size": self.max_batch,
            "version_policy": {"latest": {"num_versions": 1}},
            "input": [self._input(spec) for spec in self.interface.inputs],
            "output": [self._tensor(spec) for spec in self.interface.outputs],
            "instance_group": [{"count": self.settings.instances, "kind": KINDS[self.settings.device]}],
        }
        if self.max_batch:
            config["dynamic_batching"] = self._batching()
        if files:
            config["model_warmup"] = self._warm_up(samples, files)
        return to_text(config | self._tuning())

    def _input(self, spec: TensorSpec) -> Message:
        if not spec.shape:
            raise ArtifactError(
                f"Input {spec} is a scalar, which Triton cannot pass on; expected at least one axis. "
                "Export the model with an input of the shape [1]."
            )
        entry = dict(self._tensor(spec))
        if self.settings.backend == "python":
            # Our session fills in a missing mask, and pads requests of different lengths; NVIDIA's does neither.
            if spec.name == self.interface.mask:
                entry["optional"] = True
            if self.max_batch and any(isinstance(axis, str) for axis in spec.shape[1:]):
                entry["allow_ragged_batch"] = True
        return entry

    def _tensor(self, spec: TensorSpec) -> Message:
        dims = [axis if isinstance(axis, int) else -1 for axis in spec.shape][1 if self.max_batch else 0 :]
        entry = {"name": spec.name, "data_type": Word(f"TYPE_{PROTOCOL_NAMES[spec.dtype]}"), "dims": dims or [1]}
        # Triton does not support empty dims: an output with only the batch axis is [1] to clients.
        return entry | ({"reshape": {"shape": []}} if self.max_batch and not dims else {})

    def _batching(self) -> Message:
        for size in self.settings.preferred:
            if size > self.max_batch:
                raise InputError(f"preferred={size}, but {self.name} takes at most {self.max_batch} rows.")
        preferred = {"preferred_batch_size": self.settings.preferred} if self.settings.preferred else {}
        return preferred | {"max_queue_delay_microseconds": self.settings.max_delay_us}

    def _warm_up(self, samples: Feeds, files: Mapping[str, str]) -> Sequence[Message]:
        skipped = 1 if self.max_batch else 0
        inputs = {
            spec.name: {
                "data_type": Word(f"TYPE_{PROTOCOL_NAMES[spec.dtype]}"),
                "dims": list(samples[spec.name].shape[skipped:]) or [1],
                "input_data_file": files[spec.name],
            }
            for spec in self.interface.inputs
        }
        sizes = {"one row": 1} | ({"full batch": self.max_batch} if self.max_batch > 1 else {})
        return [{"name": name, "batch_size": size, "inputs": map_entries(inputs)} for name, size in sizes.items()]

    def _tuning(self) -> dict[str, Any]:
        tuning: dict[str, Any] = {}
        parameters = dict(self.parameters)
        if self.settings.threads is not None:
            parameters[THREADS[self.settings.backend]] = str(self.settings.threads)
        if parameters:
            tuning["parameters"] = map_entries({key: {"string_value": text} for key, text in parameters.items()})
        if (self.settings.backend, self.settings.device) == ("onnxruntime", "cuda"):
            tuning["optimization"] = {"execution_accelerators": {"gpu_execution_accelerator": [FULL_PRECISION]}}
        return tuning
