"""The table of targets: each asks for a valid export, and what is exported for one has no objection there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from attention_models import attention_model
from made_once import export_checkpoint
from osa_runtime import EncoderConfig, SkiplessEncoder, save_checkpoint
from osa_runtime.errors import InputError, MissingDependencyError
from osa_runtime.exporters import FunctionChoice
from osa_runtime.exporters.compiled import COMPILERS, compiler_of
from osa_runtime.exporters.settings import ExportSettings, settings_for
from osa_runtime.inspection.inspecting import inspect_artifact
from osa_runtime.runtime.device import DeviceSettings
from osa_runtime.runtime.other_runtimes import RUNTIMES
from osa_runtime.runtime.session import load
from osa_runtime.targets import TARGETS, GraphNeeds, target_named
from osa_runtime.verification import VerifySettings, compare
from small_models import feeds


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_asks_for_a_valid_export(name: str) -> None:
    settings, target = settings_for(name), TARGETS[name]
    assert settings.format == target.format
    assert isinstance(settings.squarings, int) or "control_flow" not in target.lacks
    assert settings.functions == ("inline" if "functions" in target.lacks else "keep")
    assert settings.core == "float32" or "float64" not in target.lacks
    assert settings.opset <= target.newest_opset
    assert (target.package is None) == (target.file is None) == (name not in COMPILERS)


@pytest.mark.parametrize("name", TARGETS)
def test_more_squarings_may_be_asked_for(name: str) -> None:
    assert settings_for(name, squarings=7).squarings == 7


def test_options_at_their_defaults_are_left_to_the_target() -> None:
    assert settings_for("openvino", **vars(ExportSettings())) == settings_for("openvino")
    assert settings_for(None, opset=20) == ExportSettings(opset=20)


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("openvino", {"format": "pt2"}, "format='pt2' contradicts target='openvino'"),
        ("executorch", {"functions": "inline"}, "functions='inline' is for format='onnx' only"),
        ("openvino", {"squarings": "auto"}, "squarings='auto' contradicts target='openvino'"),
        ("tract", {"squarings": "auto"}, "squarings='auto' contradicts target='tract'"),
        ("tract", {"dtype": "fp16"}, "dtype='fp32': tract loads no Gemm in float16"),
        ("executorch", {"squarings": "auto"}, "squarings='auto' contradicts target='executorch'"),
        ("browser", {}, "target='browser': expected one of ort, ort-web"),
    ],
)
def test_contradictions_are_refused(target: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        settings_for(target, **options)


def test_a_compiler_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"writes model\.pte with the package executorch"):
        compiler_of("executorch")
    assert compiler_of("openvino") is None


@pytest.mark.parametrize(
    ("facts", "target", "objection"),
    [
        (GraphNeeds("pt2"), "ort", "it is pt2, and ONNX Runtime is given onnx"),
        (GraphNeeds("onnx", functions=("F",)), "tract", "functions \\(F\\), and tract does not expand them"),
        (GraphNeeds("onnx", undefined=("ai.osa.F",)), "ort", "ai.osa.F has no definition in the file"),
        (GraphNeeds("onnx", control_flow=("If", "Loop")), "cuda-graph", "it has If and Loop"),
        (GraphNeeds("pt2", control_flow=("while_loop",)), "executorch", "it has while_loop"),
        (GraphNeeds("onnx", float64=("a", "b", "c", "d")), "webgpu", "for instance in a, b and 2 more"),
        (GraphNeeds("onnx", dynamic_axes=("batch",)), "cuda-graph", "its axes batch are dynamic"),
        (GraphNeeds("onnx", may_hide_nan=("Relu", "Tanh")), "tvm", "its Relu would return a number for NaN there"),
        (GraphNeeds("onnx", float16=("head/Gemm",)), "tract", "it has head/Gemm, and tract loads no Gemm in float16"),
        (GraphNeeds("onnx", opset=28), "ort", "it has opset 28"),
        (GraphNeeds("onnx", ir_version=14), "ort", "IR version 14"),
    ],
)
def test_objections(facts: GraphNeeds, target: str, objection: str) -> None:
    (found,) = target_named(target).objections(facts)
    assert re.search(objection, found)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = EncoderConfig(classes=3, dim=16, depth=1, heads=2, vocabulary=11, max_length=40, form="lowrank")
    folder = tmp_path_factory.mktemp("checkpoint") / "encoder"
    save_checkpoint(SkiplessEncoder(config), folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ort", "openvino", "tract", "cuda-graph"])  # others have the options of one of them
def test_what_is_exported_for_a_target_runs_there(name: str, checkpoint: Path, tmp_path: Path) -> None:
    artifact = export_checkpoint(checkpoint, tmp_path / "a", target=name)
    (found,) = inspect_artifact(artifact.folder, ["cpu"], [name]).targets
    assert found.objections == ()
    assert artifact.manifest.export.target == name
    if name == "ort":
        (found,) = inspect_artifact(artifact.folder, ["cpu"], ["openvino"]).targets
        assert len(found.objections) == 4  # functions, control flow, float64, NaN that an activation hides


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "runtime"), [("openvino", "openvino"), ("tract", "tract"), ("ort", "reference"), ("ort", "ort-node")]
)
def test_other_runtimes_agree(target: str, runtime: str, checkpoint: Path, tmp_path: Path) -> None:
    """Under the judgement of ``osa compare``: all sizes, magnitudes and kinds of input."""
    export_checkpoint(checkpoint, tmp_path / "a", target=target)
    try:
        load(tmp_path / "a", runtime=runtime).close()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    settings = VerifySettings(where=DeviceSettings(runtime=runtime), batches=(1, 3), lengths=(1, 12, 33), quick=True)
    certificate = compare(tmp_path / "a", tmp_path / "a", settings).certificate
    assert not certificate.failed, certificate.to_json()
    assert certificate.subject["placement"]["provider"].startswith(RUNTIMES[runtime].runtime)


@pytest.mark.slow
def test_nan_is_not_hidden_by_an_activation(exported: Callable[[str, str], Path], tmp_path: Path) -> None:
    """The ViT has a ReLU, which in OpenVINO returns 0 for NaN: of an input, or of a norm that is out of range."""
    export_checkpoint(exported("vit", "onnx").parent / "vit", tmp_path / "a", target="openvino")
    images = feeds("vit")["images"]
    with load(tmp_path / "a", runtime="openvino") as session:
        assert np.isnan(session.run({"images": 1e3 * images})["logits"]).all()
        images[1, 0, 3, 3] = np.nan
        assert np.isnan(session.run({"images": images})["logits"]).all(1).tolist() == [False, True, False]


@pytest.mark.slow
def test_a_program_for_executorch(checkpoint: Path, tmp_path: Path) -> None:
    pytest.importorskip("executorch", reason="ExecuTorch has an environment of its own")
    artifact = export_checkpoint(checkpoint, tmp_path / "a", target="executorch", static=True)
    assert {"model.pt2", "model.pte"} <= set(artifact.manifest.files)


@pytest.mark.long  # the C++ compiler takes both cores for a minute
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch, about its own code
def test_a_program_for_aotinductor(checkpoint: Path, tmp_path: Path) -> None:
    """Its answers are compared with eager before it gets its name."""
    artifact = export_checkpoint(checkpoint, tmp_path / "a", target="aoti", static=True, form="dense")
    assert {"model.pt2", "compiled.pt2"} <= set(artifact.manifest.files)


def test_lost_functions_are_recognised(tmp_path: Path) -> None:
    """A file without its functions, as onnx's version converter leaves it."""
    model = attention_model(FunctionChoice(form="dense"))
    del model.functions[:]
    onnx.save(model, tmp_path / "model.onnx")
    inspection = inspect_artifact(tmp_path / "model.onnx", ["cpu"], ["ort"])
    assert "ai.osa.OrthogonalAttention has no definition in this file" in inspection.warnings[0]
    assert "has dropped the functions" in inspection.targets[0].objections[0]
