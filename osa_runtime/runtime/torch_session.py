"""TorchScript and torch.export models in PyTorch: the module in a file, what it declares, and its session.

The only module of the runtime that imports torch, inside its functions: ONNX models run without it.
"""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from osa_runtime.errors import ArtifactError, InputError, InterfaceError, MissingDependencyError, RunError
from osa_runtime.interface import ANY_DTYPE, ANY_SHAPE, Interface, TensorSpec
from osa_runtime.runtime.device import CPU, Device, LoadSettings, Placement, torch_cuda_problem
from osa_runtime.runtime.input_checks import Array
from osa_runtime.runtime.session import Session, Source
from osa_runtime.runtime.torch_archives import refuse_ambiguous, refuse_code
from osa_runtime.steps import quiet

UNPICKLED = "its weights must be plain data"


def import_torch(path: Path, format: str) -> Any:  # noqa: A002 - the word of the manifest
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: one of its shared libraries is missing
        raise MissingDependencyError(
            f"{path} is a {format} model and needs torch, which cannot be imported ({error}). "
            'Install it with `pip install "osa-runtime[export]"`, or export the model with `osa export --format onnx`.'
        ) from error
    return torch


def read_torchscript(torch: Any, path: Path, device: str) -> tuple[Any, Interface]:
    with _damage(path, "TorchScript"):
        refuse_ambiguous(path)
        module = torch.jit.load(str(path), map_location=device).eval()
        schema = module.forward.schema
        arguments = schema.arguments[1:]  # the first is self
        inputs = tuple(TensorSpec(argument.name, ANY_DTYPE, ANY_SHAPE) for argument in arguments)
        returned = schema.returns[0].type
        count = len(returned.elements()) if returned.kind() == "TupleType" else 1
        optional = frozenset(argument.name for argument in arguments if argument.has_default_value())
        outputs = tuple(TensorSpec(name, ANY_DTYPE, ANY_SHAPE) for name in _output_names(count))
    return module, Interface(inputs, outputs, optional=optional)


def read_pt2(torch: Any, path: Path, device: str) -> tuple[Any, Interface]:
    with _damage(path, "pt2"):
        refuse_ambiguous(path)
        _refuse_code(torch, path)
        program = torch.export.load(str(path))
        if device != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, device)
        return program.module(), _program_interface(program)


def _program_interface(program: Any) -> Interface:
    signature = program.graph_signature
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    ranges = {str(symbol): _range(limits) for symbol, limits in program.range_constraints.items()}
    inputs = tuple(_spec(name, values[name]) for name in signature.user_inputs)
    names = _output_names(len(signature.user_outputs))
    outputs = tuple(_spec(name, values[value]) for name, value in zip(names, signature.user_outputs, strict=True))
    return Interface(inputs, outputs, ranges)


def _spec(name: str, value: Any) -> TensorSpec:
    shape = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
    return TensorSpec(name, str(value.dtype).removeprefix("torch."), shape)


def _range(limits: Any) -> dict[str, int]:
    return {"max": int(limits.upper)} if limits.upper.is_Integer else {}


def _output_names(count: int) -> list[str]:
    """The default names of outputs, as in ``osa_runtime.exporters``."""
    return ["output"] if count == 1 else [f"output_{i}" for i in range(count)]


def _refuse_code(torch: Any, path: Path) -> None:
    """Refuse files that could run code: torch.export.load unpickles declared objects and evaluates expressions."""
    records = torch._C.PyTorchFileReader(str(path))  # the same reader that torch.export.load uses
    names = set(records.get_all_records())
    if "archive_format" not in names or records.get_record("archive_format") != b"pt2":
        raise ValueError("it is not an archive of torch.export")
    for name in sorted(names):
        if name.startswith("data/sample_inputs/"):
            refuse_code(torch.load(io.BytesIO(records.get_record(name)), weights_only=True))
        elif name.startswith("models/"):
            refuse_code(json.loads(records.get_record(name)))
        elif name.startswith(("data/weights/", "data/constants/")):
            _refuse_pickled_record(name, records)
        elif name.startswith("data/"):
            raise ValueError(f"it holds {name}, but only weights and inputs are read; compiled code would run.")


def _refuse_pickled_record(name: str, records: Any) -> None:
    file = name.rpartition("/")[2]
    if file.endswith(".json"):
        entries = json.loads(records.get_record(name))["config"].values()
        if any(entry["use_pickle"] for entry in entries):
            raise ValueError(f"{name} declares pickled weights; {UNPICKLED}")
    elif not file.startswith(("weight_", "tensor_")):
        raise ValueError(f"it holds the object {name}; {UNPICKLED}")


@contextlib.contextmanager
def _damage(path: Path, format: str) -> Iterator[None]:  # noqa: A002 - the word of the manifest
    """Turn any error while a file is read into an ArtifactError, and silence torch's warnings."""
    try:
        with quiet():
            yield
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ArtifactError(f"{path} cannot be read as {format}: {reason} Export the model again.") from error


class TorchSession(Session):
    def __init__(self, source: Source, settings: LoadSettings) -> None:
        declared = source.declared
        self._torch = import_torch(source.path, source.format)
        self._device, placement = _place(self._torch, settings)
        read = read_torchscript if source.format == "torchscript" else read_pt2
        self._module, found = read(self._torch, source.path, str(self._device))
        if declared is not None:
            _check_counts(declared, found, source)
        super().__init__(source, declared or found, placement)
        self._threads = settings.threads
        # One call at a time: torch's threads work inside a call, and their number is set for the whole process.
        self._lock = threading.Lock()

    @property
    def module(self) -> Any:
        """The loaded module, which callers must not change."""
        if self._module is None:
            raise RunError(f"The session of {self.path} is closed; load the model again.")
        return self._module

    def _execute(self, arrays: dict[str, Array]) -> dict[str, Array]:
        tensors = [self._tensor(spec.name, arrays.get(spec.name)) for spec in self.inputs]
        module = self.module
        try:
            with self._lock, self._torch.inference_mode(), torch_threads(self._threads):
                values = module(*tensors)
        except Exception as error:
            raise RunError(f"torch failed while it ran {self.path}: {cause_of(error)}") from error
        return self._named(values)

    def _tensor(self, name: str, array: Array | None) -> Any:
        if array is None:
            return None  # an optional input of TorchScript
        try:
            # torch takes neither read-only arrays nor negative strides
            return self._torch.from_numpy(np.require(array, requirements=["C", "W"])).to(str(self._device))
        except TypeError as error:
            raise InputError(f"Input {name} is of type {array.dtype}, which torch does not know; cast it.") from error

    def _named(self, values: Any) -> dict[str, Array]:
        found = list(values) if isinstance(values, (tuple, list)) else [values]
        if len(found) != len(self.outputs) or not all(isinstance(x, self._torch.Tensor) for x in found):
            raise RunError(
                f"{self.path} returned {[type(x).__name__ for x in found]}, expected the tensors "
                f"{', '.join(map(str, self.outputs))}; export the model again."
            )
        # A copy: a model may return one of its own weights, which callers must not change.
        return {spec.name: np.array(x.cpu().numpy()) for spec, x in zip(self.outputs, found, strict=True)}

    def close(self) -> None:
        super().close()
        self._module = None


@contextlib.contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Let torch use this many threads, a setting of the whole process, and restore it; None leaves it as it is."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _place(torch: Any, settings: LoadSettings) -> tuple[Device, Placement]:
    wanted, provider, note = settings.device, f"torch {torch.__version__}", None
    if wanted != CPU:
        problem = torch_cuda_problem(torch, wanted.index)
        if problem is None:
            return wanted, Placement(str(wanted), str(wanted), provider)
        note = settings.fall_back(problem)
    return CPU, Placement(str(wanted), str(CPU), provider, note=note)


def _check_counts(declared: Interface, found: Interface, source: Source) -> None:
    """Compare the numbers of inputs and outputs; their names are the manifest's own in these formats."""
    least = len(found.inputs) - len(found.optional)
    if not least <= len(declared.inputs) <= len(found.inputs) or len(declared.outputs) != len(found.outputs):
        raise InterfaceError(
            f"The manifest of {source.path.parent} declares {len(declared.inputs)} inputs and "
            f"{len(declared.outputs)} outputs, but the model next to it has {len(found.inputs)} and "
            f"{len(found.outputs)}; export the model again."
        )


def cause_of(error: Exception) -> str:
    """The cause of an error: TorchScript puts it last, after two tracebacks, everything else first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if "Traceback of TorchScript" in str(error) else lines[0]
