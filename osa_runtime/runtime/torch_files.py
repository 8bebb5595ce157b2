"""TorchScript and pt2 files: the module to call, and the inputs and outputs that the file itself declares.

The only module of the runtime that imports torch, inside its functions: ONNX models run without it.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from osa_runtime.artifact import TensorSpec
from osa_runtime.errors import ArtifactError, MissingDependencyError
from osa_runtime.interface import ANY_DTYPE, ANY_SHAPE, Interface
from osa_runtime.runtime.torch_archives import refuse_ambiguous, refuse_code

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
    logs = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ArtifactError(f"{path} cannot be read as {format}: {reason} Export the model again.") from error
    finally:
        logging.disable(logs)
