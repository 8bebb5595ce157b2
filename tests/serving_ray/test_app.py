"""A replica that finds other models than those that were packed does not start."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from osa_runtime.errors import ArtifactError
from osa_runtime.packaging.ray_application import package_ray
from osa_runtime.serving.settings import ServerSettings
from osa_runtime.serving_ray.app import Replica
from osa_runtime.serving_ray.settings import RaySettings, packed_models

Exported = Callable[[str, str], Path]


@pytest.fixture
def models(exported: Exported, tmp_path: Path) -> Path:
    package_ray([exported("vit", "onnx")], tmp_path / "app")
    return tmp_path / "app" / "models"


def start(models: Path, packed: dict[str, str]) -> None:
    async def run() -> None:
        replica = Replica.__new__(Replica)
        await Replica.__init__(replica, RaySettings(ServerSettings(repository=models), packed=packed))  # as Ray does
        await replica._engine.close()

    asyncio.run(run())


def test_what_was_packed_starts(models: Path) -> None:
    start(models, packed_models(models))


def test_a_changed_model_does_not(models: Path) -> None:
    packed = packed_models(models)
    manifest = models / "vit-onnx" / "1" / "manifest.json"
    manifest.write_text(manifest.read_text() + " ")
    with pytest.raises(ArtifactError, match=r"\(changed: vit-onnx/1\).*Copy the package here again"):
        start(models, packed)


def test_a_changed_model_file_does_not(models: Path) -> None:
    packed = packed_models(models)
    with (models / "vit-onnx" / "1" / "model.onnx").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ArtifactError, match=r"model\.onnx"):
        start(models, packed)


def test_a_newer_version_that_was_not_packed_does_not(models: Path) -> None:
    packed = packed_models(models)
    shutil.copytree(models / "vit-onnx" / "1", models / "vit-onnx" / "2")
    with pytest.raises(ArtifactError, match=r"not packed: vit-onnx/2"):
        start(models, packed)


def test_a_machine_without_the_package_does_not(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"missing: vit-onnx/1"):
        start(tmp_path / "nowhere", {"vit-onnx/1": "0" * 64})
