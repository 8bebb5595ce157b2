"""Folders that are models: names, versions, links that lead out, formats that are programs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from osa_runtime.errors import ArtifactError, InputError
from osa_runtime.serving.engine.model import open_model
from osa_runtime.serving.engine.model_folders import ModelFolders
from osa_runtime.serving.settings import ServerSettings

Exported = Callable[[str, str], Path]


def artifact(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "manifest.json").write_text("{}")
    return path


def test_models_and_versions_are_found(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    artifact(root / "plain")
    for version in ("1", "12", "0", "-3", "latest", ".hidden", "2.old"):
        artifact(root / "versioned" / version)
    artifact(root / ".temporary")
    (root / "empty").mkdir()
    (root / "notes.txt").touch()
    folders = ModelFolders([artifact(tmp_path / "alone")], root)
    assert folders.names() == ["alone", "plain", "versioned"]
    assert sorted(folders.versions("versioned")) == [1, 12]
    assert folders.versions("plain") == {1: (root / "plain").resolve()}
    assert folders.versions("alone") == {1: tmp_path / "alone"}
    for name in ("no", "..", "../alone", "versioned/1", "", "/etc"):
        assert folders.versions(name) == {}


def test_links_out_of_the_repository_are_no_models(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    artifact(root / "inside" / "1")
    outside = artifact(tmp_path / "outside")
    (root / "link").symlink_to(outside)
    (root / "inside" / "2").symlink_to(outside)
    (root / "alias").symlink_to(root / "inside")
    folders = ModelFolders([], root)
    assert folders.names() == ["alias", "inside"]
    assert list(folders.versions("inside")) == [1]


def test_names_must_be_unique_and_plain(tmp_path: Path) -> None:
    first, second = artifact(tmp_path / "a" / "model"), artifact(tmp_path / "b" / "model")
    with pytest.raises(InputError, match="have the same name model"):
        ModelFolders([first, second], None)
    with pytest.raises(InputError, match="is both an artifact and in"):
        ModelFolders([first], tmp_path / "b")
    with pytest.raises(InputError, match="cannot be served under the name"):
        ModelFolders([artifact(tmp_path / "a model")], None)
    with pytest.raises(ArtifactError, match="is not a folder"):
        ModelFolders([], tmp_path / "no")


@pytest.mark.parametrize("kind", ["torchscript", "pt2"])
def test_model_files_that_are_programs_are_refused(exported: Exported, kind: str) -> None:
    folder = exported("vit", kind)
    with pytest.raises(ArtifactError, match="only ONNX models are served"):
        open_model("vit", 1, folder, ServerSettings(artifacts=(folder,)))


def test_changed_files_are_refused(exported: Exported, tmp_path: Path) -> None:
    folder = shutil.copytree(exported("vit", "onnx"), tmp_path / "vit")
    with (folder / "model.onnx").open("ab") as stream:
        stream.write(b"\0")
    with pytest.raises(ArtifactError, match="its hash differs"):
        open_model("vit", 1, folder, ServerSettings(artifacts=(folder,)))
