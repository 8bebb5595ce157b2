"""Triton's configuration of one model: its settings, and the text of config.pbtxt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import ParseDict
from google.protobuf.text_format import MessageToString
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from osa_runtime.errors import ArtifactError, InputError
from osa_runtime.interface import Interface
from osa_runtime.serving.engine.batch_plan import BatchPlan
from osa_runtime.serving.protocol.descriptions import configuration

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


KINDS = {"cpu": "KIND_CPU", "cuda": "KIND_GPU"}
THREADS = {"onnxruntime": "intra_op_thread_count", "python": "threads"}
# TF32 keeps 10 of float32's 23 bits of mantissa; no output would agree with the reference any more.
FULL_PRECISION = {"gpu_execution_accelerator": [{"name": "cuda", "parameters": {"use_tf32": "0"}}]}


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
        self._check()
        config = configuration(
            self.name, self.interface, self.max_batch, self._parameters(), self.settings.max_delay_us
        )
        config |= {
            "backend": self.settings.backend,
            "version_policy": {"latest": {"num_versions": 1}},
            "instance_group": [{"count": self.settings.instances, "kind": KINDS[self.settings.device]}],
        }
        if self.max_batch:
            config["dynamic_batching"]["preferred_batch_size"] = self.settings.preferred
        if self.settings.backend == "python":
            self._let_differ(config["input"])
        elif self.settings.device == "cuda":
            config["optimization"] = {"execution_accelerators": FULL_PRECISION}
        if files:
            config["model_warmup"] = self._warm_up(config["input"], samples, files)
        return MessageToString(ParseDict(config, ModelConfig()))

    def _check(self) -> None:
        for spec in self.interface.inputs:
            if not spec.shape:
                raise ArtifactError(
                    f"Input {spec} is a scalar, which Triton cannot pass on; expected at least one axis. "
                    "Export the model with an input of the shape [1]."
                )
        for size in self.settings.preferred if self.max_batch else ():
            if size > self.max_batch:
                raise InputError(f"preferred={size}, but {self.name} takes at most {self.max_batch} rows.")

    def _parameters(self) -> Mapping[str, str]:
        threads = self.settings.threads
        return self.parameters if threads is None else {**self.parameters, THREADS[self.settings.backend]: str(threads)}

    def _let_differ(self, inputs: list[dict[str, Any]]) -> None:
        """Our session fills in a missing mask, and pads requests of different lengths; NVIDIA's does neither."""
        for entry in inputs:
            entry["optional"] = entry["name"] == self.interface.mask
            entry["allow_ragged_batch"] = bool(self.max_batch) and -1 in entry["dims"]

    def _warm_up(self, inputs: list[dict[str, Any]], samples: Feeds, files: Mapping[str, str]) -> list[dict[str, Any]]:
        skipped = 1 if self.max_batch else 0
        tensors = {
            entry["name"]: {
                "data_type": entry["data_type"],
                "dims": samples[entry["name"]].shape[skipped:] or (1,),
                "input_data_file": files[entry["name"]],
            }
            for entry in inputs
        }
        sizes = {"one row": 1} | ({"full batch": self.max_batch} if self.max_batch > 1 else {})
        return [{"name": name, "batch_size": size, "inputs": tensors} for name, size in sizes.items()]
