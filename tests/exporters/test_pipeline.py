"""Refusals of an export: they say what, where and why, and leave nothing on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from exponents import normal
from osa_runtime.errors import ExportError, InputError, StorageError
from osa_runtime.exporters import export

pytestmark = pytest.mark.slow


class Static(nn.Module):
    """Pretends to take any batch, but bakes the example's into the graph."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(int(x.shape[0]), -1) if torch.compiler.is_compiling() else x.flatten(1)


class Wrong(nn.Module):
    """Computes something else when it is captured."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 1.01 if torch.compiler.is_compiling() else x * 1.0


class Unsupported(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.matrix_exp(x)


class Deciding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1


class Sorting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(sorted([x, -x], key=lambda y: float(y.sum())))


class Dictionary(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": x}


def test_an_axis_that_became_static_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="batch"):
        export(Static(), (normal(2, 3, 4),), tmp_path / "a", dynamic_shapes={"x": {0: "batch"}})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_a_wrong_answer_is_not_written(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ExportError, match=r"'output' differs from float64 on the example inputs: relative error 0\.0"):
        export(Wrong(), (normal(2, 3),), tmp_path / "a", format=kind)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("culprit", "kind", "reason"),
    [
        (Unsupported(), "onnx", "linalg_matrix_exp"),
        (Deciding(), "onnx", "data-dependent"),
        (Deciding(), "pt2", "data-dep"),
        (Sorting(), "torchscript", r"Lambda aren't supported \(UnsupportedNodeError\)$"),
    ],
    ids=["no operator", "branch on data, onnx", "branch on data, pt2", "no TorchScript"],
)
def test_what_cannot_be_exported_names_the_layer(tmp_path: Path, culprit: nn.Module, kind: str, reason: str) -> None:
    module = nn.Sequential(nn.Identity(), nn.Sequential(nn.Identity(), culprit))
    with pytest.raises(ExportError, match=rf"in the layer '1\.1': .*{reason}"):
        export(module, (normal(2, 3, 3),), tmp_path / "a", format=kind, input_names=["x"])
    assert list(tmp_path.iterdir()) == []


X = torch.zeros(2, 3)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "opset": ({"opset": 11}, "opset=11: expected 18 to 23"),
    "format": ({"format": "tflite"}, "format='tflite': expected one of onnx, torchscript, pt2"),
    "bf16": ({"dtype": "bf16"}, "no bf16 kernels"),
    "squarings": ({"squarings": -1}, "squarings=-1"),
    "axis of size one": ({"args": (X[:1],), "dynamic_shapes": {"x": {0: "batch"}}}, "torch would make it static"),
    "unknown input": ({"dynamic_shapes": {"y": {0: "batch"}}}, r"names the inputs \['y'\]"),
    "axis out of range": ({"dynamic_shapes": {"x": {5: "batch"}}}, "has the axis 5 .*, but x has 2 axes"),
    "too many names": ({"input_names": ["a", "b"]}, "Expected 1 distinct input names"),
    "output names": ({"output_names": ["a", "b"]}, "Expected 1 distinct output names"),
    "size for a name": ({"dynamic_shapes": {"x": {0: 3}}}, "fixes axis 0 of x at 3, but its example has"),
    "name with a space": ({"dynamic_shapes": {"x": {0: "my batch"}}}, "a name without spaces"),
    "name for axes": ({"dynamic_shapes": {"x": "batch"}}, "dynamic_shapes of x is 'batch'; expected {input: {axis"),
    "list of axes": ({"dynamic_shapes": ["batch"]}, "dynamic_shapes of x is 'batch'; expected {input: {axis: name}}"),
    "opset without onnx": ({"format": "pt2", "opset": 21}, "opset=21 is for format='onnx' only, not for pt2"),
    "inline without onnx": ({"format": "pt2", "functions": "inline"}, "functions='inline' is for format='onnx' only"),
    "data without onnx": (
        {"format": "torchscript", "external_data": True},
        "external_data=True is for format='onnx' only",
    ),
    "float64 inputs": ({"args": (X.double(),)}, "dtype='fp32': the example input 0 has float64 values"),
    "no tensors": ({"args": (3,)}, "tuple of tensors"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_arguments(tmp_path: Path, case: str) -> None:
    changes, message = REFUSED[case]
    options = {"args": (X,)} | changes

    class Double(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    with pytest.raises(InputError, match=message):
        export(Double(), options.pop("args"), tmp_path / "a", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_float64_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"dtype='fp32': the module has float64 parameters \(weight\)"):
        export(nn.Linear(3, 3).double(), (X,), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


class Deviation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / (x - x.mean(1, keepdim=True)).abs().sum(1, keepdim=True)


@pytest.mark.parametrize(("module", "problem"), [(nn.Conv1d(4, 4, 3), "fails"), (Deviation(), "returns NaN or Inf")])
def test_a_size_that_the_module_cannot_answer_is_named(tmp_path: Path, module: nn.Module, problem: str) -> None:
    x, axis = normal(2, 4, 6), 2 if isinstance(module, nn.Conv1d) else 1
    message = rf"itself {problem}.* 'tokens' at size 1\. .* torch\.export\.Dim\(\"tokens\", min=\d\)"
    with pytest.raises(InputError, match=message):
        export(module, (x,), tmp_path / "a", input_names=["x"], dynamic_shapes={"x": {axis: "tokens"}})
    assert list(tmp_path.iterdir()) == []
    ranged = {"x": {axis: torch.export.Dim("tokens", min=3)}}
    export(module, (x,), tmp_path / "a", input_names=["x"], dynamic_shapes=ranged)


def test_only_tensors_come_out(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="forward returns dict"):
        export(Dictionary(), (X,), tmp_path / "a")


def test_an_existing_folder_is_kept_unless_told(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "precious").touch()
    with pytest.raises(StorageError, match="exists already"):
        export(nn.Identity(), (X,), tmp_path / "a", input_names=["x"])
    assert (tmp_path / "a" / "precious").exists()
