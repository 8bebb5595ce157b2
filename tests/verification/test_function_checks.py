"""The functions of modules in verification: fed alone, with all that their modules take and return."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from osa_runtime import verify
from osa_runtime.artifact import Artifact
from osa_runtime.exporters import export
from osa_runtime.quantization import quantize
from osa_runtime.verification.settings import VerifySettings

pytestmark = pytest.mark.slow

SETTINGS = VerifySettings(quick=True)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor, *, mask: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.project(x).chunk(3, -1)
        weights = (q @ k.mT).masked_fill(~mask[:, None], -1e4).softmax(-1)
        return self.out(weights @ v), weights


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.mlp = nn.LayerNorm(8), Attention(), nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        attended, weights = self.attention(self.norm(x), mask=mask)
        return x + self.mlp(attended).relu() * weights.amax(-1, keepdim=True)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, mask)
        real = x.masked_fill(~mask[..., None], 0.0)
        return self.head(real.sum(1) / mask.sum(1, keepdim=True))


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder().eval()


@pytest.fixture(scope="module")
def kept(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("functions") / "kept"
    args = (torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool))
    axes = {name: {0: "batch", 1: "tokens"} for name in ("x", "mask")}
    return export(encoder, args, out, dynamic_shapes=axes, functions=[Block, Attention]).folder


def changed(kept: Path, tmp_path: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    """The model alone, without the manifest, whose hashes would tell."""
    model = onnx.load(kept / "model.onnx")
    change(model)
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_every_call_is_fed_alone(kept: Path, encoder: Encoder) -> None:
    certificate = verify(kept, module=encoder, settings=SETTINGS).certificate
    assert certificate.verdict == "pass"
    [check] = [check for check in certificate.checks if check.name == "functions"]
    # Two blocks, and two attentions with two results each, on two lengths, padded and not.
    assert check.passed
    assert "each call fed alone, 24 results" in check.detail


def double_between_blocks(model: onnx.ModelProto) -> None:
    """Let a block take half of its input and return twice its result: the next one undoes it, and so does the graph."""
    [block] = [function for function in model.functions if function.name == "Block"]
    for factor, nodes in ((0.5, block.node), (2.0, block.node)):
        value = numpy_helper.from_array(torch.tensor(factor).numpy(), "")
        nodes.insert(0, helper.make_node("Constant", [], [f"factor{factor}"], f"c{factor}", value=value))
    for node in block.node:
        node.input[:] = ["half" if name == "x" else name for name in node.input]
        node.output[:] = ["single" if name == "out" else name for name in node.output]
    block.node.insert(2, helper.make_node("Mul", ["x", "factor0.5"], ["half"], "half"))
    block.node.append(helper.make_node("Mul", ["single", "factor2.0"], ["out"], "double"))
    first, last = (node for node in model.graph.node if node.op_type == "Block")
    two = numpy_helper.from_array(torch.tensor(2.0).numpy(), "two")
    model.graph.initializer.append(two)
    for node in model.graph.node:
        node.input[:] = ["undone" if name == last.output[0] else name for name in node.input]
    first.input[0] = "doubled"
    model.graph.node.insert(0, helper.make_node("Mul", ["x", "two"], ["doubled"], "doubled"))
    place = next(i for i, node in enumerate(model.graph.node) if node.name == last.name)
    model.graph.node.insert(place + 1, helper.make_node("Div", [last.output[0], "two"], ["undone"], "undone"))


def test_faults_that_cancel_between_functions_are_found(kept: Path, encoder: Encoder, tmp_path: Path) -> None:
    path = changed(kept, tmp_path, double_between_blocks)
    certificate = verify(path, module=encoder, settings=SETTINGS).certificate
    assert not any(case.verdict == "fail" for case in certificate.cases)
    assert all(unit.passed for unit in certificate.units)
    assert [check.name for check in certificate.checks if not check.passed] == ["functions"]
    assert certificate.verdict == "fail"


def test_quantising_expands_functions(kept: Path, encoder: Encoder, tmp_path: Path) -> None:
    small = quantize(kept, tmp_path / "int8").artifact
    model = onnx.load(small.model_path)
    assert not model.functions
    assert {"blocks.0.attention.project/MatMul", "blocks.1.mlp/MatMul"} <= {node.name for node in model.graph.node}
    assert verify(small.folder, module=encoder, settings=SETTINGS).certificate.verdict == "pass"


def test_the_manifest_records_the_classes(kept: Path) -> None:
    assert [name.partition(":")[2] for name in Artifact.open(kept).manifest.export.function_classes] == [
        "Block",
        "Attention",
    ]
