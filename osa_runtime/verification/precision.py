"""The check that a type which loosens tolerances is the type of the file, not only of the manifest."""

from __future__ import annotations

from collections.abc import Iterator

from osa_runtime.parity.certificate import Check
from osa_runtime.verification.subject import Subject


def check_precision(subject: Subject) -> Iterator[Check]:
    """Return a failed check if the manifest calls the artifact quantised and no weight has 8 bits."""
    if subject.dtype not in ("w8", "w8a8"):
        return
    from onnx import TensorProto

    from osa_runtime.onnx_files import read_onnx

    types = {tensor.data_type for tensor in read_onnx(subject.session.path).graph.initializer}
    if not types & {TensorProto.INT8, TensorProto.UINT8}:
        text = f"the manifest says {subject.dtype}, but no weight in the file has 8 bits"
        yield Check("precision", False, text)
