"""The facts about a model: counts, functions, sizes, and the nodes that a provider has no kernel for."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import onnx
import onnxruntime
import pytest
from onnx import TensorProto

import handmade_onnx as handmade
from osa_runtime.artifact import describe_files
from osa_runtime.errors import ArtifactError
from osa_runtime.inspection.inspecting import Inspection, inspect_artifact
from osa_runtime.inspection.kernel_coverage import IN_FLOAT32, NOWHERE, ON_CPU, UNKNOWN, expand, place
from osa_runtime.interface import TensorSpec
from osa_runtime.manifest import AttentionSettings, Manifest
from osa_runtime.runtime.kernels import Kernel, KernelList, list_kernels


def inspected(model: onnx.ModelProto, folder: Path, *providers: str) -> Inspection:
    onnx.save(model, folder / "model.onnx")
    return inspect_artifact(folder / "model.onnx", providers)


def test_functions_and_operators(tmp_path: Path) -> None:
    inspection = inspected(handmade.with_functions(), tmp_path)
    graph = inspection.graph
    assert graph is not None
    twice, once = graph.functions
    assert (twice.name, twice.in_graph, twice.calls, twice.summary) == ("Twice", 2, 2, "Once, twice")
    assert (once.name, once.in_graph, once.calls, once.summary) == ("Once", 0, 4, "max(x, 0)")
    assert graph.operators == {"test.functions::Twice": 2, "MatMul": 1}
    assert graph.expanded == {"Relu": 4, "MatMul": 1}
    assert graph.opsets == {"ai.onnx": 18, "test.functions": 1}
    assert (graph.ir_version, graph.producer, graph.weight_bytes) == (8, "hand", 64)
    assert (inspection.parameters, inspection.size) == (16, (tmp_path / "model.onnx").stat().st_size)
    assert inspection.inputs == (TensorSpec("x", "float32", ("batch", 4)),)


def test_control_flow_is_descended_into(tmp_path: Path) -> None:
    graph = inspected(handmade.with_control_flow(), tmp_path).graph
    assert graph is not None
    assert graph.operators == {"Identity": 2, "Add": 1, "Greater": 1, "If": 1, "Loop": 1, "ReduceSum": 1}


def test_control_flow_without_functions_is_a_warning(tmp_path: Path) -> None:
    assert "OpenVINO returns wrong values" in inspected(handmade.with_control_flow(), tmp_path).warnings[0]
    assert inspected(handmade.with_functions(), tmp_path).warnings == ()


def test_json_holds_everything(tmp_path: Path) -> None:
    text = json.dumps(asdict(inspected(handmade.with_functions(), tmp_path, "cpu")))
    assert json.loads(text)["placements"][0]["provider"] == "cpu"


@pytest.mark.parametrize(
    ("operator", "element", "inputs", "consequence"),
    [
        ("MatMul", TensorProto.FLOAT, 2, None),
        ("MatMul", TensorProto.FLOAT16, 2, IN_FLOAT32),
        ("MatMul", TensorProto.BFLOAT16, 2, NOWHERE),
        ("CastLike", TensorProto.FLOAT, 2, None),  # no kernel, but its definition is a Cast
        ("Acos", TensorProto.DOUBLE, 1, NOWHERE),
    ],
    ids=lambda value: str(value)[:12],
)
def test_the_cpu_runs_what_it_is_said_to(operator: str, element: int, inputs: int, consequence: str | None) -> None:
    model = handmade.one_node(operator, element, inputs=inputs)
    cpu = list_kernels("cpu")
    gaps = place(expand(model), cpu, cpu).gaps
    assert [gap.consequence for gap in gaps] == ([consequence] if consequence else [])
    if consequence == NOWHERE:
        with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented):
            start(model)
    else:
        start(model)


def start(model: onnx.ModelProto) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def test_gaps_inside_control_flow_are_found() -> None:
    everything_but_add = [k for k in list_kernels("cpu").kernels if k.operator != "Add"]
    fake = KernelList("cuda", "made up", tuple(everything_but_add))
    placement = place(expand(handmade.with_control_flow()), fake, list_kernels("cpu"))
    assert [(gap.operator, gap.types, gap.consequence) for gap in placement.gaps] == [("Add", ("float",), ON_CPU)]
    assert (placement.missing, placement.nodes) == (1, 7)


def test_what_a_partial_list_does_not_mention_is_unknown() -> None:
    only_relu = KernelList("cuda", "a table", (Kernel("", "Relu", 14, 14, {}),), complete=False)
    placement = place(expand(handmade.with_functions()), only_relu, list_kernels("cpu"))
    assert [(gap.operator, gap.consequence) for gap in placement.gaps] == [("MatMul", UNKNOWN)]
    assert placement.missing == 0


def test_operators_of_other_vendors_are_compared_by_name() -> None:
    model = handmade.one_node("FusedMatMul", TensorProto.FLOAT, inputs=2)
    model.graph.node[0].domain = "com.microsoft"
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    cpu = list_kernels("cpu")
    assert place(expand(model), cpu, cpu).gaps == ()


def artifact(folder: Path, kind: str, name: str, content: bytes) -> Path:
    folder.mkdir()
    (folder / name).write_bytes(content)
    x = TensorSpec("x", "float32", ("batch", 4))
    manifest = Manifest(kind, (x,), (x,), 1234, osa=AttentionSettings("dense"), files=describe_files(folder))
    (folder / "manifest.json").write_text(manifest.to_json(), encoding="utf-8")
    return folder


def test_exported_folder_adds_its_manifest(tmp_path: Path) -> None:
    folder = artifact(tmp_path / "a", "onnx", "model.onnx", handmade.with_functions().SerializeToString())
    inspection = inspect_artifact(folder, ["cpu"])
    assert inspection.parameters == 1234
    assert inspection.manifest is not None
    assert inspection.manifest["osa"]["form"] == "dense"
    assert inspection.graph is not None
    assert inspection.warnings == ()


@pytest.mark.parametrize(("kind", "name"), [("torchscript", "model.pt"), ("pt2", "model.pt2")])
def test_other_formats_show_their_manifest(tmp_path: Path, kind: str, name: str) -> None:
    inspection = inspect_artifact(artifact(tmp_path / "a", kind, name, b"anything"))
    assert (inspection.format, inspection.size, inspection.graph, inspection.placements) == (kind, 8, None, ())


def test_a_changed_file_is_a_warning(tmp_path: Path) -> None:
    folder = artifact(tmp_path / "a", "pt2", "model.pt2", b"anything")
    (folder / "model.pt2").write_bytes(b"something else")
    assert "hash differs" in inspect_artifact(folder).warnings[0]


def test_a_file_changed_beyond_reading_is_said_to_be_changed(tmp_path: Path) -> None:
    folder = artifact(tmp_path / "a", "onnx", "model.onnx", handmade.with_functions().SerializeToString())
    (folder / "model.onnx").write_bytes(b"something else")
    with pytest.raises(ArtifactError, match="not the file that was exported: its hash differs"):
        inspect_artifact(folder, [])


def test_weights_outside_count(tmp_path: Path) -> None:
    onnx.save(handmade.deep(1), tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    inspection = inspect_artifact(tmp_path / "m.onnx", [])
    assert inspection.parameters == 20
    assert inspection.size == sum((tmp_path / name).stat().st_size for name in ("m.onnx", "w.bin"))
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ArtifactError, match="keeps weights there"):
        inspect_artifact(tmp_path / "m.onnx", [])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is an empty file"),
        (onnx.ModelProto(producer_name="nobody").SerializeToString(), "it has no graph or no opset"),
        (b"this is not a model at all", "not an ONNX model, or only a part of one: .*cannot be decoded"),
        (
            handmade.with_functions().SerializeToString()[:150],
            "not an ONNX model, or only a part of one: .*cannot be decoded",
        ),
    ],
    ids=["empty", "no graph", "text", "truncated"],
)
def test_not_a_model(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(ArtifactError, match=reason):
        inspect_artifact(tmp_path / "model.onnx")


def test_functions_that_call_themselves(tmp_path: Path) -> None:
    model = handmade.with_functions()
    model.functions[0].node[0].op_type, model.functions[0].node[0].domain = "Twice", handmade.DOMAIN
    with pytest.raises(ArtifactError, match=r"not a valid ONNX model: .*[Cc]ycle"):
        inspected(model, tmp_path)
