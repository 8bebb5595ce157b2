"""``osa export`` as a user meets it: exit codes, messages, and what is on disk afterwards."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from osa_runtime.cli.main import app
from osa_runtime.models import SkiplessViT, ViTConfig, save_checkpoint
from osa_runtime.nn import OrthogonalSelfAttention

pytestmark = pytest.mark.slow

OSA = [sys.executable, "-m", "osa_runtime"]

FACTORY = """
import torch
from osa_runtime.nn import OrthogonalSelfAttention

def build():
    return OrthogonalSelfAttention(8, 2), (torch.zeros(2, 5, 8),), {"x": {0: "batch", 1: "tokens"}}

def broken():
    raise RuntimeError("no such layer")

def wrong():
    return 3

def nothing_to_run():
    return torch.nn.Identity(), None, None

def axes_as_a_list():
    return torch.nn.Identity(), (torch.zeros(2, 3),), ["batch"]

def automatic():
    return torch.nn.Identity(), torch.zeros(2, 3), [(torch.export.Dim.AUTO, None)]

def leaves():
    raise SystemExit(4)

def late():
    import beside
    return beside.build()
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("checkpoint") / "c"
    return save_checkpoint(SkiplessViT(ViTConfig(classes=3, dim=8, depth=1, heads=2)), folder)


def osa_export(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["export", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize("kind", ["onnx", "torchscript", "pt2"])
def test_a_checkpoint_becomes_an_artifact(checkpoint: Path, tmp_path: Path, kind: str) -> None:
    code, output = osa_export(checkpoint, "--out", tmp_path / "a", "--format", kind, "-v")
    assert code == 0, output
    assert "images: float32[batch, 1, 8, 8]" in output
    assert "check the answers" in output
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert manifest["format"] == kind
    assert manifest["osa"]["squarings"] == "auto"
    assert manifest["osa"]["largest_norm"] > 1e5
    assert len(manifest["source"]["sha256"]) == 64
    assert {"python", "torch", "osa-runtime"} <= set(manifest["versions"])
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_dry_run_writes_nothing(checkpoint: Path, tmp_path: Path) -> None:
    code, output = osa_export(checkpoint, "--out", tmp_path / "a", "--dry-run", "--squarings", "4")
    assert code == 0, output
    assert "model.onnx, manifest.json" in output
    assert "squarings=4" in output
    assert list(tmp_path.iterdir()) == []


def test_a_target_chooses_the_options(checkpoint: Path, tmp_path: Path) -> None:
    code, output = osa_export(checkpoint, "--out", tmp_path / "a", "--dry-run", "--target", "aoti")
    assert code == 0
    assert "model.pt2, compiled.pt2, manifest.json" in output
    code, output = osa_export(checkpoint, "--out", tmp_path / "a", "--target", "openvino", "--format", "pt2")
    assert code == 2
    assert "--format pt2 contradicts --target openvino, which needs --format onnx" in output


def test_dry_run_names_the_file_of_weights(checkpoint: Path, tmp_path: Path) -> None:
    code, output = osa_export(checkpoint, "--out", tmp_path / "a", "--dry-run", "--external-data")
    assert code == 0, output
    assert "model.onnx, model.onnx.data, manifest.json" in output


def test_force_never_touches_the_source(checkpoint: Path, tmp_path: Path) -> None:
    source = tmp_path / "run" / "checkpoint"
    shutil.copytree(checkpoint, source)
    (tmp_path / "run" / "manifest.json").touch()  # even where it looks like one of ours
    (source / "manifest.json").touch()
    before = sorted(tmp_path.rglob("*"))
    for out, relation in ((source, "is"), (tmp_path / "run", "contains"), (source / "a", "lies inside")):
        code, output = osa_export(source, "--out", out, "--force")
        assert code == 3
        assert f"{relation} its source" in output
    assert sorted(tmp_path.rglob("*")) == before


def test_force_keeps_a_folder_that_is_not_an_artifact(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    code, output = osa_export(checkpoint, "--out", tmp_path, "--force")
    assert code == 3
    assert "it has no manifest.json" in output
    assert [p.name for p in tmp_path.iterdir()] == ["precious"]


def test_an_existing_folder_needs_force(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    code, output = osa_export(checkpoint, "--out", tmp_path / "a")
    assert code == 3
    assert "--force" in output
    code, output = osa_export(checkpoint, "--out", tmp_path / "a", "--force")
    assert code == 0, output
    assert (tmp_path / "a" / "model.onnx").exists()


def test_a_factory_spells_axes_as_torch_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(FACTORY)
    code, output = osa_export("--factory", "mine:automatic", "--out", "a")
    assert code == 0, output
    assert "input: float32[batch, 3]" in output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "either a CHECKPOINT folder or --factory"),
        (["nowhere"], 3, "nowhere does not exist; a checkpoint is a folder"),
        (["CHECKPOINT", "--opset", "9"], 2, "--opset 9: expected 18 to 23"),
        (["CHECKPOINT", "--dtype", "bf16"], 2, "no bf16 kernels"),
        (["CHECKPOINT", "--squarings", "few"], 2, "--squarings few: expected auto"),
        (["CHECKPOINT", "--squarings", "99"], 2, "--squarings 99: expected"),
        (["CHECKPOINT", "--weights", "w.pt"], 2, "--weights goes with --factory"),
        (["--factory", "nonsense"], 2, "expected package.module:function"),
        (["--factory", "no_such_module:f"], 2, "there is no module 'no_such_module'"),
        (["--factory", "mine:nothing"], 2, "mine has no 'nothing'"),
        (["--factory", "mine:broken"], 3, "raised RuntimeError: no such layer"),
        (["--factory", "mine:wrong"], 3, "must return (module, example_inputs, axes)"),
        (["--factory", "mine:nothing_to_run"], 3, "example_inputs, axes)"),
        (["--factory", "mine:axes_as_a_list"], 2, "dynamic_shapes of input is 'batch'; expected"),
        (["--factory", "mine:leaves"], 3, "raised SystemExit: 4"),
        (["--factory", "mine_needs:build"], 3, "mine_needs imports 'no_such_package', which is not installed"),
        (["--factory", "mine_fails:build"], 3, "importing it failed: AttributeError"),
        (["nowhere", "--dry-run"], 3, "nowhere does not exist; a checkpoint is a folder"),
        (["--factory", "mine:nothing", "--dry-run"], 2, "mine has no 'nothing'"),
        (["CHECKPOINT", "--format", "pt2", "--opset", "20"], 2, "--opset 20 is for --format onnx only"),
        (["--factory", "mine:build", "--weights", "missing.pt"], 3, "missing.pt does not exist"),
        (["--factory", "mine:build", "--weights", "mine.py"], 3, "cannot be read as weights"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_mistakes(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(FACTORY)
    (tmp_path / "mine_needs.py").write_text("import no_such_package")
    (tmp_path / "mine_fails.py").write_text("import sys\nsys.nothing")
    given = [str(checkpoint) if a == "CHECKPOINT" else a for a in arguments]
    found, output = osa_export(*given, "--out", "a")
    assert found == code, output
    assert message in output
    assert not (tmp_path / "a").exists()


def test_a_factory_imports_from_its_folder_when_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "beside"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(FACTORY)
    before = list(sys.path)
    code, output = osa_export("--factory", "mine:late", "--out", "a", "--format", "torchscript")
    assert code == 0, output
    assert sys.path == before


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_factory_with_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(FACTORY)
    weights = OrthogonalSelfAttention(8, 2).state_dict()
    path = tmp_path / f"w{suffix}"
    save_file(weights, path) if suffix == ".safetensors" else torch.save(weights, path)
    code, output = osa_export("--factory", "mine:build", "--weights", path, "--out", "a")
    assert code == 0, output
    assert "x: float32[batch, tokens, 8]" in output
    torch.save({"alpha": torch.zeros(3)}, tmp_path / "other.pt")
    code, output = osa_export("--factory", "mine:build", "--weights", "other.pt", "--out", "b")
    assert code == 3
    assert "alpha is (3,), expected (2,)" in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_export_leaves_nothing_behind(checkpoint: Path, tmp_path: Path, number: int) -> None:
    command = [*OSA, "export", str(checkpoint), "--out", str(tmp_path / "a"), "--format", "pt2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "capture" in line:
            break
    time.sleep(0.2)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []


LOAD = """
import sys, torch, warnings
warnings.simplefilter("ignore")
sys.modules["osa_runtime"] = None  # as if it were not installed
load = torch.jit.load if sys.argv[1].endswith(".pt") else lambda path: torch.export.load(path).module()
model = load(sys.argv[1])
with torch.no_grad():
    print(model(torch.ones(3, 1, 8, 8)).shape)
"""


@pytest.mark.parametrize(("kind", "name"), [("torchscript", "model.pt"), ("pt2", "model.pt2")])
def test_torch_formats_load_without_this_package(checkpoint: Path, tmp_path: Path, kind: str, name: str) -> None:
    code, output = osa_export(checkpoint, "--out", tmp_path / "a", "--format", kind)
    assert code == 0, output
    command = [sys.executable, "-c", LOAD, str(tmp_path / "a" / name)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "torch.Size([3, 3])" in result.stdout
