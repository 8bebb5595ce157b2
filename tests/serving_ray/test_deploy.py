"""``osa package ray``, then ``serve deploy``: what is written is taken, answers, and is replaced under load."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc
import tritonclient.http

import osa_runtime
from inference_load import InferenceLoad
from osa_runtime.exporters import export_checkpoint
from osa_runtime.models import SkiplessViT, ViTConfig, save_checkpoint
from osa_runtime.packaging.ray_application import package_ray
from osa_runtime.packaging.ray_config import RayAddresses
from ray_cluster import ONLY_WITH_ALL, RayHead, wait_for_replicas, wait_for_the_end
from small_models import SIZES, feeds

Exported = Callable[[str, str], Path]

pytestmark = [pytest.mark.slow, ONLY_WITH_ALL, pytest.mark.usefixtures("alone")]

IMAGE = feeds("vit", 1)["images"].astype(np.float32)
READ_CONFIG = """
import dataclasses, json, sys, yaml
from ray.serve.schema import ServeDeploySchema
from osa_runtime.serving_ray.options import RayOptions
schema = ServeDeploySchema.model_validate(yaml.safe_load(open(sys.argv[1])))
(application,) = schema.applications
print(json.dumps([schema.model_dump(exclude_unset=True), dataclasses.asdict(RayOptions.read(application.args))]))
"""


@pytest.fixture
def head(
    python_with_ray: Path, ray_environment: dict[str, str], tmp_path: Path, exported: Exported
) -> Iterator[RayHead]:
    """Started as the package says: in a shell that has read its environment."""
    environment = package_ray([exported("vit", "onnx")], tmp_path / "environment").environment
    with RayHead(python_with_ray.parent, str(environment), ray_environment, tmp_path / "ray.txt") as running:
        yield running
    wait_for_the_end()


def answer_of(artifact: Path) -> Any:
    with osa_runtime.load(artifact) as session:
        return session.run({"images": IMAGE})["logits"].astype(np.float32)


def other_weights(folder: Path) -> Path:
    torch.manual_seed(7)
    save_checkpoint(SkiplessViT(ViTConfig(classes=10, **SIZES)), folder / "other")
    export_checkpoint(folder / "other", folder / "other-onnx")
    return folder / "other-onnx"


def test_a_new_version_is_deployed_under_load(
    head: RayHead, exported: Exported, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """One test, since Ray takes its time to start."""
    artifacts = exported("vit", "onnx"), other_weights(tmp_path)
    first, second = map(answer_of, artifacts)
    assert not np.allclose(first, second, atol=1e-2)
    apps = [
        package_ray([artifact], tmp_path / f"app{version}", {"replicas": 2}, name="vit", version=version)
        for version, artifact in enumerate(artifacts, 1)
    ]
    with subtests.test("the first version answers"):
        head.deploy(apps[0].config)
        wait_for_replicas(2)
        check_version("1", first)
    with subtests.test("the second takes over, and no request fails"):
        with InferenceLoad(8000, "vit", IMAGE, first, second) as load:
            load.wait_for(100)
            assert load.right[1] == 0
            head.deploy(apps[1].config)
            wait_for_replicas(2)
            load.wait_for(100)
        load.check_perfect()
        check_version("2", second)
        with InferenceLoad(8000, "vit", IMAGE, first, second) as load:
            load.wait_for(200)
        load.check_perfect()
        assert load.right[0] == 0
    with subtests.test("the same file again changes nothing"):
        before = sorted(wait_for_replicas(2))
        head.deploy(apps[1].config)
        assert sorted(wait_for_replicas(2)) == before
    with subtests.test("a machine with other models says so"):
        broken = package_ray([artifacts[0]], tmp_path / "app3", name="vit", version=3).config
        manifest = tmp_path / "app3" / "models" / "vit" / "3" / "manifest.json"
        manifest.write_text(manifest.read_text() + " ")
        assert "does not hold the models that were packed (changed: vit/3)" in head.deploy(broken, "DEPLOY_FAILED")


def check_version(version: str, expected: Any) -> None:
    for client, port in ((tritonclient.http, 8000), (tritonclient.grpc, 8001)):
        tensor = client.InferInput("images", IMAGE.shape, "FP32")
        tensor.set_data_from_numpy(IMAGE)
        with client.InferenceServerClient(f"127.0.0.1:{port}") as connected:
            answer = connected.infer("vit", [tensor])
            np.testing.assert_allclose(answer.as_numpy("logits"), expected, rtol=1e-4, atol=1e-5)
            content = answer.get_response()
            assert version == (content["model_version"] if isinstance(content, dict) else content.model_version)


@pytest.mark.parametrize(
    ("options", "addresses"),
    [
        ({}, RayAddresses()),
        ({"replicas": "1:8", "target_ongoing": 2.5, "timeout": 1e-05}, RayAddresses("127.0.0.1", 80, None, "/digits")),
        ({"threads": 2}, RayAddresses("::", location="HeadOnly")),
    ],
    ids=["defaults", "autoscaling", "one proxy"],
)
def test_ray_reads_what_was_chosen(
    python_with_ray: Path, exported: Exported, tmp_path: Path, options: dict[str, Any], addresses: RayAddresses
) -> None:
    token = tmp_path / '"to" ken\t: #ä'
    token.write_text("a-token-of-20-letters")
    options = options | {"token_file": str(token)}
    packed = package_ray([exported("vit", "onnx")], tmp_path / "app", options, addresses, at="/srv/app")
    command = [str(python_with_ray), "-c", READ_CONFIG, str(packed.config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    schema, read = json.loads(done.stdout.splitlines()[-1])
    assert {name: read[name] for name in options} == options
    assert read["repository"] == "/srv/app/models"
    assert list(read["packed"]) == ["vit-onnx/1"]
    assert schema["http_options"] == {"host": addresses.host, "port": addresses.http_port}
    assert schema.get("grpc_options", {}).get("port") == addresses.grpc_port
    assert schema["proxy_location"] == addresses.location
    assert schema["applications"][0]["route_prefix"] == addresses.route
