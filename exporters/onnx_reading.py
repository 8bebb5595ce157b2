"""Reading an ONNX file that may be anything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from osa_runtime.errors import ArtifactError


def read_onnx(path: Path) -> onnx.ModelProto:
    """The model without the weights that are kept outside it."""
    try:
        model = onnx.load(path, load_external_data=False, format="protobuf")
    except DecodeError as error:
        raise ArtifactError(f"{path} is not an ONNX model, or only a part of one: it cannot be decoded.") from error
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not model.ir_version or not model.opset_import or not model.graph.output:
        raise ArtifactError(f"{path} is not an ONNX model, or only a part of one: it has no graph or no opset.")
    return model


@contextlib.contextmanager
def readable_errors(path: Path) -> Iterator[None]:
    """Around calls into onnx's C++ side, which raises RuntimeErrors of its own and in its own words."""
    try:
        yield
    except (RuntimeError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        reason = " ".join(str(error).split())
        raise ArtifactError(f"{path} is not a valid ONNX model: {reason}") from error


def external_files(model: onnx.ModelProto, path: Path) -> tuple[Path, ...]:
    """The files beside the model that hold its weights."""
    names = {
        entry.value
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    files = tuple(path.parent / name for name in sorted(names))
    for file in files:
        if not file.is_file():
            raise ArtifactError(f"{file} does not exist, but {path.name} keeps weights there; copy both files.")
    return files
