"""The application as a whole: what lies where, what is refused, and that nothing half-written stays."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from osa_runtime import load
from osa_runtime.artifact import Artifact, sha256
from osa_runtime.errors import ArtifactError, ConfigError, InputError, OsaError, StorageError
from osa_runtime.packaging import ray_application
from osa_runtime.packaging.ray_application import environment_text, package_ray
from osa_runtime.packaging.ray_config import RayAddresses
from osa_runtime.serving_ray.environment import DEFAULTS

Artifacts = Callable[[str], Path]


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_layout(artifacts: Artifacts, tmp_path: Path) -> None:
    app = tmp_path / "deep" / "app"
    packed = package_ray([artifacts("vit"), artifacts("external")], app, version=3)
    assert packed.models == ["external (version 3)", "vit-onnx (version 3)"]
    assert files_in(app) == [
        "environment.sh",
        "models/external/3/manifest.json",
        "models/external/3/model.onnx",
        "models/external/3/model.onnx.data",
        "models/vit-onnx/3/manifest.json",
        "models/vit-onnx/3/model.onnx",
        "osa-package.json",
        "serve.yaml",
    ]
    Artifact.open(app / "models" / "external" / "3").check_files()
    images = {"images": np.ones((2, 1, 8, 8), np.float32)}
    copy, original = (load(path, threads=1) for path in (app / "models" / "vit-onnx" / "3", artifacts("vit")))
    np.testing.assert_array_equal(copy.run(images)["logits"], original.run(images)["logits"])


def test_the_config_file_holds_what_was_chosen(artifacts: Artifacts, tmp_path: Path) -> None:
    options = {"replicas": "1:8", "timeout": 1e-05, "token_file": "/etc/osa/token", "threads": 2}
    addresses = RayAddresses("10.0.0.1", 80, None, "/digits", "HeadOnly")
    packed = package_ray([artifacts("vit")], tmp_path / "app", options, addresses, at='/srv/"app" ä', name="digits")
    text = packed.config.read_text(encoding="utf-8")
    digest = sha256(artifacts("vit") / "manifest.json")
    assert text.partition("\n\n")[2] == (
        "proxy_location: HeadOnly\n\n"
        'http_options:\n  host: "10.0.0.1"\n  port: 80\n\n'
        'applications:\n  - name: osa\n    route_prefix: "/digits"\n'
        "    import_path: osa_runtime.serving_ray.app:build\n    args:\n"
        '      repository: "/srv/\\"app\\" ä/models"\n'
        f'      packed:\n        "digits/1": "{digest}"\n'
        '      replicas: "1:8"\n      threads: 2\n      max_batch: 32\n      timeout: 1.0e-05\n'
        '      token_file: "/etc/osa/token"\n'
    )
    assert str(packed.environment) == '/srv/"app" ä/environment.sh'


def test_a_shell_reads_the_environment(tmp_path: Path) -> None:
    """Values have several lines and quotes of both kinds, and what is set already stays."""
    (tmp_path / "environment.sh").write_text(environment_text(timeout=30))
    script = "set -eu; . ./environment.sh; env -0"
    given = {"PATH": "/usr/bin:/bin", "RAY_SERVE_HAPROXY_RETRIES": "4"}
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, env=given, capture_output=True, check=True)
    read = dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry)
    assert {name: read.get(name) for name in DEFAULTS} == DEFAULTS | {"RAY_SERVE_HAPROXY_RETRIES": "4"}


def test_haproxy_waits_longer_than_replicas_do() -> None:
    assert "TIMEOUT_SERVER_S=300\n" in environment_text(timeout=30)
    assert "TIMEOUT_SERVER_S=631\n" in environment_text(timeout=600.5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"at": "srv/app"}, InputError, "--at is srv/app, expected an absolute path"),
        ({"name": "a/b"}, InputError, "cannot be the name of a model in Ray Serve"),
        ({"options": {"replicas": "4:1"}}, ConfigError, "replicas is '4:1'"),
        ({"options": {"token_file": "token"}}, ConfigError, "token is relative"),
        ({"options": {"require_certificate": True}}, OsaError, "certificate"),
    ],
    ids=["at", "name", "replicas", "token", "certificate"],
)
def test_wrong_wishes_are_refused(
    artifacts: Artifacts, tmp_path: Path, arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        package_ray([artifacts("vit")], tmp_path / "app", **arguments)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        ({"http_port": 0}, "--http-port is 0"),
        ({"grpc_port": 70000}, "--grpc-port is 70000"),
        ({"grpc_port": 8000}, "are both 8000"),
        ({"route": "digits"}, "--route-prefix is 'digits'"),
        ({"route": "/digits/"}, "--route-prefix"),
        ({"route": "/a\n"}, "--route-prefix"),
        ({"host": "a b"}, "--host is 'a b'"),
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
    with pytest.raises(StorageError, match="lie in each other"):
        package_ray([damaged], damaged / "app")
    assert [path.name for path in tmp_path.iterdir()] == ["damaged"]


def test_what_exists_is_replaced_only_when_it_is_ours_and_asked_for(
    artifacts: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = tmp_path / "app"
    package_ray([artifacts("vit")], app, name="old")
    with pytest.raises(StorageError, match=r"exists already.*--force"):
        package_ray([artifacts("vit")], app, name="new")
    with monkeypatch.context() as patch:
        patch.setattr(ray_application, "environment_text", lambda timeout: 1 / 0)
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
