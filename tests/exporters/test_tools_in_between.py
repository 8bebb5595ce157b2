"""Tools that rewrite ONNX files on their way to a runtime: which keep our functions, and whether answers stay right.

docs/export.md has the table. onnxslim, onnxsim and onnxoptimizer are tried where they are installed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnx.version_converter
import onnxruntime
import pytest
import torch

from attention_models import attention_model
from exponents import normal, scale_for
from osa_runtime.exporters import FunctionChoice
from osa_runtime.inspection.inspecting import inspect_artifact
from structured_attention import Problem, is_right_or_nan

CHOICES = {
    "functions": FunctionChoice(any_type=False, form="dense"),
    "straight": FunctionChoice(any_type=False, form="lowrank", squarings=4),
    "float32": FunctionChoice(any_type=False, form="lowrank", squarings=4, core="float32"),
}
Tool = Callable[[onnx.ModelProto], onnx.ModelProto]


def converted(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.version_converter.convert_version(model, 20)


def slimmed(model: onnx.ModelProto) -> onnx.ModelProto:
    return pytest.importorskip("onnxslim").slim(model)


def simplified(model: onnx.ModelProto) -> onnx.ModelProto:
    return pytest.importorskip("onnxsim").simplify(model)[0]


def optimized(model: onnx.ModelProto) -> onnx.ModelProto:
    return pytest.importorskip("onnxoptimizer").optimize(model)


KEEP_FUNCTIONS = [slimmed, simplified, optimized]


@pytest.mark.parametrize("name", ["straight", "float32"])
@pytest.mark.parametrize("tool", [converted, *KEEP_FUNCTIONS])
def test_answers_of_inlined_graphs_survive(name: str, tool: Tool) -> None:
    check_answers(tool(onnx.inliner.inline_local_functions(attention_model(CHOICES[name]))))


@pytest.mark.parametrize("tool", KEEP_FUNCTIONS)
def test_functions_survive(tool: Tool) -> None:
    model = attention_model(CHOICES["functions"])
    found = tool(attention_model(CHOICES["functions"]))
    assert {f.name for f in found.functions} == {f.name for f in model.functions}
    check_answers(found)


def test_the_version_converter_drops_functions_and_inspection_says_so(tmp_path: Path) -> None:
    onnx.save(converted(attention_model(CHOICES["functions"])), tmp_path / "model.onnx")
    assert "has dropped the model's functions" in inspect_artifact(tmp_path / "model.onnx", ["cpu"]).warnings[0]


@pytest.mark.parametrize("name", CHOICES)
def test_a_graph_that_onnx_runtime_has_optimized(name: str, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # it warns that the file is for this machine
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    model = attention_model(CHOICES[name]).SerializeToString()
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    found = onnx.load(tmp_path / "optimized.onnx")
    assert not [node for node in found.graph.node if node.domain == "ai.osa"]
    check_answers(found)


def check_answers(model: onnx.ModelProto) -> None:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for tokens in (5, 40):
        q, k, v = (normal(tokens, 8, seed=seed) for seed in (1, 2, 3))
        problem = Problem(q, k, v, float(scale_for(q, k, 2.5).float()))
        feeds = {name: x[None, None].numpy() for name, x in (("q", q), ("k", k), ("v", v))}
        (found,) = session.run(None, feeds | {"scale": np.array([problem.scale], np.float32)})
        assert np.isfinite(found).all()
        assert is_right_or_nan(torch.from_numpy(found[0, 0]), problem)
