"""The application as a whole: what lies where, what is refused, and that nothing half-written stays."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from osa_runtime import load
from osa_runtime.artifact import Artifact, sha256
from osa_runtime.errors import ArtifactError, InputError, OsaError, StorageError
from osa_runtime.packaging import ray_application
from osa_runtime.packaging.ray_application import RayAddresses, package_ray
from osa_runtime.serving.settings import BatchSettings, ServerSettings
from osa_runtime.serving_ray.settings import RaySettings

Artifacts = Callable[[str], Path]


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_layout(artifacts: Artifacts, tmp_path: Path) -> None:
    app = tmp_path / "deep" / "app"
    packed = package_ray([artifacts("vit"), artifacts("external")], app, version=3)
    assert packed.models == ["external (version 3)", "vit-onnx (version 3)"]
    assert files_in(app) == [
        "models/external/3/manifest.json",
        "models/external/3/model.onnx",
        "models/external/3/model.onnx.data",
        "models/vit-onnx/3/manifest.json",
        "models/vit-onnx/3/model.onnx",
        "osa-package.json",
        "serve.json",
    ]
    Artifact.open(app / "models" / "external" / "3").check_files()
    images = {"images": np.ones((2, 1, 8, 8), np.float32)}
    copy, original = (load(path, threads=1) for path in (app / "models" / "vit-onnx" / "3", artifacts("vit")))
    np.testing.assert_array_equal(copy.run(images)["logits"], original.run(images)["logits"])


def test_the_config_file_holds_every_argument(artifacts: Artifacts, tmp_path: Path) -> None:
    home = Path('/srv/"app" ä 😀')
    batching = BatchSettings(max_batch=8, max_delay=1e-05)
    server = ServerSettings(repository=home / "models", threads=2, batching=batching)
    settings = RaySettings(server, token_file=Path("/etc/osa/token"), replicas="1:8", target_ongoing=2.5)
    addresses = RayAddresses("10.0.0.1", 80, None, "/digits", "HeadOnly")
    packed = package_ray([artifacts("vit")], tmp_path / "app", settings, addresses, name="digits")
    config = json.loads(packed.config.read_text(encoding="utf-8"))
    (application,) = config.pop("applications")
    arguments = application.pop("args")
    assert config == {"proxy_location": "HeadOnly", "http_options": {"host": "10.0.0.1", "port": 80}}
    import_path = "osa_runtime.serving_ray.app:build"
    assert application == {"name": "osa", "route_prefix": "/digits", "import_path": import_path}
    hashes = {"digits/1": sha256(artifacts("vit") / "manifest.json")}
    assert RaySettings.read(arguments) == dataclasses.replace(settings, packed=hashes)


def test_the_default_is_where_the_package_lies(artifacts: Artifacts, tmp_path: Path) -> None:
    packed = package_ray([artifacts("vit")], tmp_path / "app")
    (application,) = json.loads(packed.config.read_text(encoding="utf-8"))["applications"]
    assert application["args"]["server"]["repository"] == str(tmp_path / "app" / "models")


def test_wrong_wishes_are_refused(artifacts: Artifacts, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be the name of a model in Ray Serve"):
        package_ray([artifacts("vit")], tmp_path / "app", name="a/b")
    strict = RaySettings(ServerSettings(repository=Path("/srv"), require_certificate=True))
    with pytest.raises(OsaError, match="certificate"):
        package_ray([artifacts("vit")], tmp_path / "app", strict)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        ({"http_port": 0}, "http_port=0"),
        ({"grpc_port": 70000}, "grpc_port=70000"),
        ({"grpc_port": 8000}, "http_port=8000 and grpc_port=8000 are the same"),
        ({"route": "digits"}, "route='digits'"),
        ({"route": "/digits/"}, "route="),
        ({"route": "/a\n"}, "route="),
        ({"host": "a b"}, "host='a b'"),
    ],
    ids=str,
)
def test_wrong_addresses_are_refused(addresses: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RayAddresses(**addresses)  # type: ignore[arg-type]


def test_damaged_and_other_artifacts_are_refused(
    artifacts: Artifacts, exported: Callable[[str, str], Path], tmp_path: Path
) -> None:
    damaged = shutil.copytree(artifacts("vit"), tmp_path / "damaged")
    with (damaged / "model.onnx").open("ab") as file:
        file.write(b"\0")
    for folder, message in ((damaged, "its hash differs"), (exported("vit", "pt2"), "expected onnx")):
        with pytest.raises(ArtifactError, match=message):
            package_ray([folder], tmp_path / "app")
    with pytest.raises(StorageError, match=r"its source, .* choose a separate folder"):
        package_ray([damaged], damaged / "app")
    assert [path.name for path in tmp_path.iterdir()] == ["damaged"]


def test_what_exists_is_replaced_only_when_it_is_ours_and_asked_for(
    artifacts: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = tmp_path / "app"
    package_ray([artifacts("vit")], app, name="old")
    with pytest.raises(StorageError, match=r"exists already.*replace=True"):
        package_ray([artifacts("vit")], app, name="new")
    with monkeypatch.context() as patch:
        patch.setattr(ray_application, "config_text", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            package_ray([artifacts("vit")], app, name="new", replace=True)
    assert [path.name for path in (app / "models").iterdir()] == ["old"]
    package_ray([artifacts("vit")], app, name="new", replace=True)
    assert list(json.loads((app / "osa-package.json").read_text())["models"]) == ["new/1"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    with pytest.raises(StorageError, match="will not be replaced"):
        package_ray([artifacts("vit")], tmp_path / "mine", replace=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["app", "mine"]
