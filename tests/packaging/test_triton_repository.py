"""The repository as a whole: what lies where, what is refused, and that nothing half-written stays."""

from __future__ import annotations

import filecmp
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from osa_runtime import load
from osa_runtime.artifact import Artifact
from osa_runtime.errors import ArtifactError, InputError, OsaError, RunError, StorageError
from osa_runtime.packaging import triton_repository
from osa_runtime.packaging.packed_artifacts import MARKER
from osa_runtime.packaging.triton_config import TritonSettings
from osa_runtime.packaging.triton_repository import OTHERS, PACKAGE, package_triton, runtime_files
from osa_runtime.serving.engine.model_folders import ModelFolders

Exported = Callable[[str, str], Path]
Artifacts = Callable[[str], Path]

PYTHON = TritonSettings(backend="python")


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_layout_of_the_onnxruntime_backend(artifacts: Artifacts, tmp_path: Path) -> None:
    repo = tmp_path / "deep" / "repo"
    models = package_triton([artifacts("vit"), artifacts("external")], repo)
    assert [(model.name, model.max_batch) for model in models] == [("vit-onnx", 32), ("external", 32)]
    assert files_in(repo) == [
        "external/1/manifest.json",
        "external/1/model.onnx",
        "external/1/model.onnx.data",
        "external/config.pbtxt",
        "external/warmup/input0",
        "osa-package.json",
        "vit-onnx/1/manifest.json",
        "vit-onnx/1/model.onnx",
        "vit-onnx/config.pbtxt",
        "vit-onnx/warmup/input0",
    ]


def test_models_are_copied_whole(artifacts: Artifacts, tmp_path: Path) -> None:
    package_triton([artifacts("external")], tmp_path / "repo", name="digits")
    copy = tmp_path / "repo" / "digits" / "1"
    Artifact.open(copy).check_files()
    assert filecmp.cmp(copy / "model.onnx.data", artifacts("external") / "model.onnx.data", shallow=False)
    images = {"images": np.ones((2, 1, 8, 8), np.float32)}
    np.testing.assert_array_equal(
        load(copy, threads=1).run(images)["logits"], load(artifacts("external"), threads=1).run(images)["logits"]
    )


def test_a_certificate_goes_along(artifacts: Artifacts, tmp_path: Path) -> None:
    folder = shutil.copytree(artifacts("vit"), tmp_path / "vit")
    (folder / "certificate.json").write_text("{}")
    (folder / "notes.txt").write_text("mine")
    package_triton([folder], tmp_path / "repo")
    assert files_in(tmp_path / "repo" / "vit" / "1") == ["certificate.json", "manifest.json", "model.onnx"]


def test_our_own_server_finds_the_same_models(artifacts: Artifacts, tmp_path: Path) -> None:
    package_triton([artifacts("vit")], tmp_path / "repo", TritonSettings(backend="python", version=3))
    assert ModelFolders((), tmp_path / "repo").versions("vit-onnx").keys() == {3}


RUN_THE_COPY = """
import json, sys, types
for name in ("torch", "onnx", "typer", "rich", "starlette", "tritonclient"):
    sys.modules[name] = None
version = sys.argv[1]
sys.path.insert(0, version)
import numpy, model

class Tensor:
    def __init__(self, name, array):
        self.name, self.as_numpy = lambda: name, lambda: array

def response(output_tensors=(), error=None):
    return error or {tensor.name(): tensor.as_numpy().tolist() for tensor in output_tensors}

def error(text, code):
    return text

error.INVALID_ARG = error.INTERNAL = None
parts = dict(Tensor=Tensor, InferenceResponse=response, TritonError=error, TritonModelException=Exception)
sys.modules["triton_python_backend_utils"] = types.SimpleNamespace(**parts)
request = lambda *shape: types.SimpleNamespace(
    inputs=lambda: [Tensor("images", numpy.ones(shape, numpy.float32))], requested_output_names=lambda: ["logits"]
)
arguments = {"model_repository": version + "/..", "model_version": "1", "model_instance_device_id": "0"}
arguments["model_config"] = "{}"
served = model.TritonPythonModel()
served.initialize(arguments | {"model_instance_kind": "CPU"})
answers = served.execute([request(1, 1, 8, 8), request(1, 1, 9, 8)])
try:
    model.TritonPythonModel().initialize(arguments | {"model_instance_kind": "GPU"})
except Exception as refusal:
    answers.append(str(refusal))
files = [module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "osa_runtime"]
print(json.dumps([answers, files]))
"""


def test_the_copy_is_what_the_model_needs_and_no_more(artifacts: Artifacts, tmp_path: Path) -> None:
    """Every module that Triton's process imports is of the copy, and every module of the copy is imported."""
    package_triton([artifacts("vit")], tmp_path / "repo", PYTHON)
    version = tmp_path / "repo" / "vit-onnx" / "1"
    command = [sys.executable, "-B", "-c", RUN_THE_COPY, str(version)]
    child = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert child.returncode == 0, child.stderr
    (right, wrong, *refused), used = json.loads(child.stdout)
    expected = load(artifacts("vit"), threads=1).run({"images": np.ones((1, 1, 8, 8), np.float32)})["logits"]
    np.testing.assert_allclose(right["logits"], expected, rtol=1e-5, atol=1e-6)
    assert "images" in wrong
    assert all("cuda:0" in text for text in refused)
    copied = [file for file in files_in(version / "osa_runtime") if file != "runtime/probe.py"]
    assert sorted(Path(file).relative_to(version / "osa_runtime").as_posix() for file in used) == copied


def test_no_import_of_the_copy_leads_out_of_it() -> None:
    """Imports inside of functions too, which no run may reach; other sessions are for what is not packed."""
    files = runtime_files()
    for file in files:
        for found in re.findall(r"^\s*from (osa_runtime[\w.]*) import", _without_types(file.read_text()), re.MULTILINE):
            home = PACKAGE.parent.joinpath(*found.split("."))
            known = home.with_suffix(".py") in files or home / "__init__.py" in files
            assert known or found.removeprefix("osa_runtime.") in OTHERS, f"{file} imports {found}"


def _without_types(text: str) -> str:
    return re.sub(r"^if TYPE_CHECKING:\n(    .*\n)+", "", text, flags=re.MULTILINE)


def test_nothing_of_this_machine_is_written(artifacts: Artifacts, tmp_path: Path) -> None:
    package_triton([artifacts("vit")], tmp_path / "repo", PYTHON)
    for file in (MARKER, "vit-onnx/config.pbtxt", "vit-onnx/1/model.py"):
        text = (tmp_path / "repo" / file).read_text()
        assert str(tmp_path) not in text
        assert str(artifacts("vit").parent) not in text
    assert not list((tmp_path / "repo").rglob("__pycache__"))


@pytest.mark.parametrize("settings", [TritonSettings(), PYTHON], ids=lambda settings: settings.backend)
@pytest.mark.parametrize("kind", ["torchscript", "pt2"])
def test_torch_formats_are_refused(exported: Exported, tmp_path: Path, kind: str, settings: TritonSettings) -> None:
    with pytest.raises(ArtifactError, match=rf"is of the format {kind}, expected onnx.*`osa export --format onnx`"):
        package_triton([exported("vit", kind)], tmp_path / "repo", settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../a", "-a", "a b", "ä", "a" * 129, "a\n", '"'], ids=lambda name: ascii(name)[:9]
)
def test_names_that_triton_does_not_take_are_refused(artifacts: Artifacts, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"cannot be the name of a model in Triton.*name='…'"):
        package_triton([artifacts("vit")], tmp_path / "repo", name=name)
    assert list(tmp_path.iterdir()) == []


def test_names_must_be_clear(artifacts: Artifacts, tmp_path: Path) -> None:
    other = shutil.copytree(artifacts("vit"), tmp_path / "vit-onnx")
    with pytest.raises(InputError, match="have the same name vit-onnx"):
        package_triton([artifacts("vit"), other], tmp_path / "repo")
    with pytest.raises(InputError, match="name='digits' is for one model, got 2"):
        package_triton([artifacts("vit"), other], tmp_path / "repo", name="digits")
    with pytest.raises(InputError, match="nothing to package"):
        package_triton([], tmp_path / "repo")


def test_what_exists_is_replaced_only_when_it_is_ours_and_asked_for(artifacts: Artifacts, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    package_triton([artifacts("vit")], repo, name="old")
    with pytest.raises(StorageError, match=r"exists already.*replace=True"):
        package_triton([artifacts("vit")], repo, name="new")
    assert (repo / "old").is_dir()
    package_triton([artifacts("vit")], repo, name="new", replace=True)
    assert sorted(path.name for path in repo.iterdir()) == ["new", MARKER]
    foreign = tmp_path / "foreign"
    (foreign / "model").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"will not be replaced: it has no osa-package\.json"):
        package_triton([artifacts("vit")], foreign, replace=True)
    assert [path.name for path in foreign.iterdir()] == ["model"]


def test_an_artifact_and_the_repository_lie_apart(artifacts: Artifacts, tmp_path: Path) -> None:
    folder = shutil.copytree(artifacts("vit"), tmp_path / "a" / "vit")
    for out in (folder / "repo", tmp_path / "a"):
        with pytest.raises(StorageError):
            package_triton([folder], out, replace=True)
    assert not (folder / "repo").exists()
    Artifact.open(folder).check_files()


def test_a_changed_model_is_refused(artifacts: Artifacts, tmp_path: Path) -> None:
    folder = shutil.copytree(artifacts("vit"), tmp_path / "vit")
    with (folder / "model.onnx").open("ab") as stream:
        stream.write(b"\0")
    with pytest.raises(ArtifactError, match="its hash differs"):
        package_triton([folder], tmp_path / "repo")
    assert not (tmp_path / "repo").exists()


def test_a_manifest_of_another_model_is_refused(artifacts: Artifacts, tmp_path: Path) -> None:
    folder = shutil.copytree(artifacts("vit"), tmp_path / "vit")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["inputs"][0]["name"] = "pictures"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="declares the inputs pictures"):
        package_triton([folder], tmp_path / "repo")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vit"]


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="expected a folder that `osa export` wrote"):
        package_triton([tmp_path / "no"], tmp_path / "repo")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_midway_leaves_the_old_repository(
    artifacts: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = tmp_path / "repo"
    package_triton([artifacts("vit")], repo, name="old")
    before = files_in(repo)

    def full_disk(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(triton_repository, "copy_runtime", full_disk)
    with pytest.raises(StorageError, match="No space left"):
        package_triton([artifacts("static"), artifacts("vit")], repo, PYTHON, replace=True)
    assert files_in(repo) == before
    assert [path.name for path in tmp_path.iterdir()] == ["repo"]


def test_a_sample_that_fails_is_said_and_can_be_left_out(
    artifacts: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is not finite on ordinary values would never start in Triton."""
    nothing = {"tokens": np.zeros((1, 4), np.int64), "mask": np.zeros((1, 4), bool)}
    monkeypatch.setattr(triton_repository, "sample_inputs", lambda *_: nothing)
    with pytest.raises(RunError, match=r"warm-up.*NaN or Inf.*warm_up=False") as raised:
        package_triton([artifacts("encoder")], tmp_path / "repo")
    assert isinstance(raised.value.__cause__, OsaError)
    package_triton([artifacts("encoder")], tmp_path / "repo", TritonSettings(warm_up=False))
    assert not (tmp_path / "repo" / "encoder-onnx" / "warmup").exists()
