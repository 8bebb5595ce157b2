"""ONNX models in ONNX Runtime, on the CPU or on CUDA, and the number of squarings in each of their layers.

Every call of orthogonal attention has its count as a second value, which is not an output of the graph. To
observe it, the values are made outputs when the model is loaded. That needs no ONNX package: a protobuf message
followed by another is the two merged, so what is missing is appended.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from osa_runtime.errors import ArtifactError, MissingDependencyError, RunError
from osa_runtime.interface import Interface, TensorSpec, check_agreement
from osa_runtime.manifest import Manifest
from osa_runtime.runtime.device import (
    CPU,
    CUDA_PROVIDER,
    ON_THE_CPU,
    Device,
    LoadSettings,
    Placement,
    onnx_cuda_problem,
    wheel_problem,
)
from osa_runtime.runtime.input_checks import Array
from osa_runtime.runtime.optimized_copies import started_from_copy
from osa_runtime.runtime.session import Session, Source

CPU_PROVIDER = "CPUExecutionProvider"
EXTERNAL_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
# Passes of ONNX Runtime that find nothing in our functions, which hold nothing twice: an eighth of the time to load.
IDLE_PASSES = "ConstantSharing;CommonSubexpressionElimination;TransposeOptimizer"
FATAL = 4  # ONNX Runtime's log level; messages below that are also raised as errors
DTYPE_OF = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(double)": "float64"} | {
    f"tensor({name})": name for name in ("int64", "int32", "int16", "int8", "uint8", "bool")
}


class OnnxSession(Session):
    def __init__(self, source: Source, settings: LoadSettings) -> None:
        declared = source.declared
        self._ort = _import_onnxruntime()
        counted = counted_layers(source.artifact.manifest) if settings.count_squarings and source.artifact else {}
        self._counts = tuple(counted.values())
        self._session, placement = self._start(source, settings)
        self._profiling = settings.profile is not None
        found = _interface(self._session, source, self._counts)
        if declared is not None:
            check_agreement(declared, found, f"The manifest of {source.path.parent}")
        super().__init__(source, declared or found, placement, Squarings(tuple(counted)) if counted else None)
        self._device = Device("cuda", settings.device.index) if placement.device != "cpu" else CPU
        self._names = [*(spec.name for spec in self.outputs), *self._counts]

    def _start(self, source: Source, settings: LoadSettings) -> tuple[Any, Placement]:
        note = None
        if settings.device != CPU:
            problem = onnx_cuda_problem()
            if problem is None:
                session, problem = self._start_on_cuda(source, settings)
                if problem is None:
                    placed = Placement(str(settings.device), str(settings.device), CUDA_PROVIDER, cpu_nodes(session))
                    return session, placed
            note = settings.fall_back(problem)
        session = self._start_from_copy(source, settings) or self._create(source, settings, [CPU_PROVIDER])
        return session, Placement(str(settings.device), str(CPU), CPU_PROVIDER, note=note)

    def _start_on_cuda(self, source: Source, settings: LoadSettings) -> tuple[Any, str | None]:
        # TF32 keeps 10 of float32's 23 bits of mantissa; no output would agree with the reference any more.
        wanted = {"device_id": str(settings.device.index), "use_tf32": "0"}
        try:
            session = self._create(source, settings, [(CUDA_PROVIDER, wanted), CPU_PROVIDER])
        except ArtifactError as error:
            if "CUDA" not in str(error):
                raise
            return None, f"{error.__cause__}. See `osa doctor`; choose another device, {ON_THE_CPU}."
        if CUDA_PROVIDER not in session.get_providers():
            return None, f"ONNX Runtime chose {', '.join(session.get_providers())} instead. See `osa doctor`."
        return session, None

    def _start_from_copy(self, source: Source, settings: LoadSettings) -> Any | None:
        """A session that need not be optimised, or that leaves a copy for the next one; None without the cache."""
        if not settings.cache or settings.profile is not None:
            return None

        def start(path: str, entries: Mapping[str, str], written: str | None) -> Any:
            return self._create(source, settings, [CPU_PROVIDER], path, entries, written)

        return started_from_copy(self._ort, source, self._counts, start)

    def _create(
        self,
        source: Source,
        settings: LoadSettings,
        providers: Sequence[Any],
        copy: str = "",
        entries: Mapping[str, str] = MappingProxyType({}),
        written: str | None = None,
    ) -> Any:
        """A session of the model, or of the ``copy`` of it; what was optimised is ``written``."""
        wanted = self._ort.SessionOptions()
        wanted.log_severity_level = FATAL
        wanted.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if source.artifact is not None and source.artifact.manifest.attentions and providers == [CPU_PROVIDER]:
            wanted.add_session_config_entry("optimization.disable_specified_optimizers", IDLE_PASSES)
        if settings.threads is not None:
            wanted.intra_op_num_threads = settings.threads
        if settings.profile is not None:
            wanted.enable_profiling = True
            wanted.profile_file_prefix = str(settings.profile)
        for name, value in entries.items():
            wanted.add_session_config_entry(name, value)
        if written is not None:
            wanted.optimized_model_filepath = written
        try:
            # enable_fallback=0: a session never changes its provider silently
            model: str | bytes = copy or str(source.path)
            if self._counts and not copy:
                wanted.add_session_config_entry(EXTERNAL_DATA_FOLDER, str(source.path.parent))
                model = with_counts(source.path.read_bytes(), self._counts)
            return self._ort.InferenceSession(model, wanted, providers=providers, enable_fallback=0)
        except Exception as error:
            raise ArtifactError(f"ONNX Runtime cannot load {source.path}: {error_text(error)}") from error

    def _execute(self, arrays: dict[str, Array]) -> dict[str, Array]:
        names, session = self._names, self._session
        feeds = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        if session is None:
            raise RunError(f"The session of {self.path} is closed; load the model again.")
        try:
            if self._device == CPU:
                values = session.run(names, feeds)
            else:
                values = self._run_bound(session, names, feeds, self._device)
        except Exception as error:
            raise RunError(f"ONNX Runtime failed while it ran {self.path}: {error_text(error)}") from error
        if self.squarings is not None:
            self.squarings.add(values[-len(self._counts) :])
        return dict(zip(names, values[: len(self.outputs)], strict=False))

    def _run_bound(self, session: Any, names: Sequence[str], feeds: Mapping[str, Array], device: Device) -> list[Array]:
        """Run with one copy to the device and one back; ONNX Runtime keeps everything else on the device."""
        binding = session.io_binding()
        for name, array in feeds.items():
            value = self._ort.OrtValue.ortvalue_from_numpy(array, device.kind, device.index)
            binding.bind_ortvalue_input(name, value)
        for name in names:
            binding.bind_output(name, device.kind, device.index)
        session.run_with_iobinding(binding)
        return list(binding.copy_outputs_to_cpu())

    def end_profile(self) -> Path:
        if self._session is None or not self._profiling:
            return super().end_profile()
        self._profiling = False
        return Path(self._session.end_profiling())

    def close(self) -> None:
        super().close()
        self._session = None


def cpu_nodes(session: Any) -> tuple[str, ...] | None:
    """The nodes that ONNX Runtime placed on the CPU; None for releases before 1.24, which do not report them."""
    try:
        subgraphs = session.get_provider_graph_assignment_info()
    except Exception:  # noqa: BLE001 - a failed report must not end the session
        return None
    nodes = [node for part in subgraphs if part.ep_name == CPU_PROVIDER for node in part.get_nodes()]
    return tuple(f"{node.name} ({node.op_type})" for node in nodes)


def _import_onnxruntime() -> Any:
    try:
        ort = importlib.import_module("onnxruntime")
        return ort if ort.InferenceSession else None
    except (ImportError, AttributeError) as error:  # AttributeError: a half-removed wheel imports as an empty namespace
        problem = wheel_problem() or f"ONNX Runtime is installed and cannot be imported ({error}). Reinstall it."
        raise MissingDependencyError(problem) from error


def _interface(session: Any, source: Source, counts: Sequence[str]) -> Interface:
    inputs, outputs = session.get_inputs(), [x for x in session.get_outputs() if x.name not in counts]
    return Interface(tuple(_spec(x, source) for x in inputs), tuple(_spec(x, source) for x in outputs))


def _spec(value: Any, source: Source) -> TensorSpec:
    if value.type not in DTYPE_OF:
        raise ArtifactError(f"{value.name} of {source.path} is of type {value.type}; expected {', '.join(DTYPE_OF)}.")
    shape = tuple(size if size is not None else f"{value.name}_{axis}" for axis, size in enumerate(value.shape))
    return TensorSpec(value.name, DTYPE_OF[value.type], shape)


def error_text(error: Exception) -> str:
    return " ".join(str(error).split())[:600] or type(error).__name__


# Field numbers of onnx.proto
MODEL_GRAPH, GRAPH_OUTPUT = 7, 12
VALUE_NAME, VALUE_TYPE, TYPE_TENSOR, TENSOR_ELEMENT, TENSOR_SHAPE = 1, 2, 1, 1, 2
INT64 = 7


class Squarings:
    """The squarings of each layer in the latest run, and the most in any run; empty before the first."""

    def __init__(self, layers: Sequence[str]) -> None:
        self._layers = tuple(layers)
        self.latest: dict[str, int] = {}
        self.most: dict[str, int] = {}

    def add(self, counts: Iterable[Any]) -> None:
        for layer, value in zip(self._layers, counts, strict=True):
            count = int(value)
            self.latest[layer] = count
            if count > self.most.get(layer, -1):
                self.most[layer] = count

    def forget(self) -> None:
        self.latest, self.most = {}, {}


def counted_layers(manifest: Manifest) -> dict[str, str]:
    """The value that holds the count, for each layer that has one; a layer with two calls has two."""
    calls = [(call.name, call.squarings) for call in manifest.attentions if call.squarings is not None]
    uses = Counter(name for name, _ in calls)
    return {name if name and uses[name] == 1 else count: count for name, count in calls}


def with_counts(model: bytes, values: Iterable[str]) -> bytes:
    """The model with these scalars among its outputs."""
    tensor = _varint(TENSOR_ELEMENT << 3) + _varint(INT64) + _message(TENSOR_SHAPE, b"")
    kind = _message(VALUE_TYPE, _message(TYPE_TENSOR, tensor))
    outputs = (_message(GRAPH_OUTPUT, _message(VALUE_NAME, name.encode()) + kind) for name in values)
    return model + _message(MODEL_GRAPH, b"".join(outputs))


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)
