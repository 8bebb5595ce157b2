"""A type that loosens tolerances must be that of the file, and not of the manifest alone."""

from __future__ import annotations

from collections.abc import Iterator

from osa_runtime.parity.certificate import Check
from osa_runtime.verification.subject import Subject


def check_precision(subject: Subject) -> Iterator[Check]:
    """A failed check where an artifact calls itself quantised and has no weights of 8 bits."""
    if subject.dtype not in ("w8", "w8a8"):
        return
    from onnx import TensorProto

    from osa_runtime.onnx_files import read_onnx

    types = {tensor.data_type for tensor in read_onnx(subject.session.path).graph.initializer}
    if not types & {TensorProto.INT8, TensorProto.UINT8}:
        text = f"the manifest says {subject.dtype}, but no weight in the file has 8 bits"
        yield Check("precision", False, text)
