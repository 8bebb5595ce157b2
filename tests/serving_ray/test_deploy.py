"""``osa package ray``, then ``serve deploy``: what is written answers, survives, and is replaced under load."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import time
import urllib.error
import urllib.request
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
from osa_runtime.packaging.ray_application import RayAddresses, package_ray
from osa_runtime.serving.settings import BatchSettings, ServerSettings
from osa_runtime.serving_ray.settings import RaySettings
from ray_cluster import RayHead, replica_processes, wait_for_replicas, wait_until
from small_models import SIZES, feeds

Exported = Callable[[str, str], Path]

pytestmark = [
    pytest.mark.ray,
    pytest.mark.usefixtures("alone"),
]

HTTP, GRPC = "127.0.0.1:8000", "127.0.0.1:8001"
IMAGE = feeds("vit", 1)["images"].astype(np.float32)
READ_CONFIG = """
import sys, yaml
from ray.serve.schema import ServeDeploySchema
from osa_runtime.serving_ray.app import build
from osa_runtime.serving_ray.settings import RaySettings
schema = ServeDeploySchema.model_validate(yaml.safe_load(open(sys.argv[1], encoding="utf-8")))
(application,) = schema.applications
build(application.args)
print(repr(RaySettings.read(application.args)))
"""


@pytest.fixture(params=["0", "1"], ids=["Ray's own proxy", "HAProxy"])
def head(
    request: pytest.FixtureRequest, python_with_ray: Path, ray_environment: dict[str, str], tmp_path: Path
) -> Iterator[RayHead]:
    environment = ray_environment | {"RAY_SERVE_ENABLE_HA_PROXY": request.param}
    with RayHead(python_with_ray.parent, environment, tmp_path / "ray.txt") as running:
        yield running


def answer_of(artifact: Path) -> Any:
    with osa_runtime.load(artifact) as session:
        return session.run({"images": IMAGE})["logits"].astype(np.float32)


def other_weights(folder: Path) -> Path:
    torch.manual_seed(7)
    save_checkpoint(SkiplessViT(ViTConfig(classes=10, **SIZES)), folder / "other")
    export_checkpoint(folder / "other", folder / "other-onnx")
    return folder / "other-onnx"


def package(artifact: Path, app: Path, version: int) -> Path:
    settings = RaySettings(ServerSettings(repository=app / "models"), replicas=2)
    return package_ray([artifact], app, settings, name="vit", version=version).config


def test_a_package_is_deployed(head: RayHead, exported: Exported, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """One test, since Ray takes its time to start."""
    artifacts = exported("vit", "onnx"), other_weights(tmp_path)
    first, second = map(answer_of, artifacts)
    assert not np.allclose(first, second, atol=1e-2)
    configs = [package(artifact, tmp_path / f"app{version}", version) for version, artifact in enumerate(artifacts, 1)]
    head.deploy(configs[0])
    wait_for_replicas(2)
    with subtests.test("both protocols answer as the session does"):
        check_answers("1", first)
    with subtests.test("a stream of gRPC answers before it ends"):
        check_stream(first)
    with subtests.test("one replica does not answer for all"):
        check_refusals()
    with subtests.test("a replica is killed under load"):
        check_killed_replica(InferenceLoad(8000, "vit", IMAGE, first))
    with subtests.test("a new version takes over, and no request fails"):
        with InferenceLoad(8000, "vit", IMAGE, first, second) as load:
            load.wait_for(100)
            assert load.right[1] == 0
            head.deploy(configs[1])
            wait_for_replicas(2)
            load.wait_for(100)
        load.check_perfect()
        check_answers("2", second)
    with subtests.test("the same file again changes nothing"):
        before = sorted(wait_for_replicas(2))
        head.deploy(configs[1])
        assert sorted(wait_for_replicas(2)) == before
    with subtests.test("a machine with other models says so"):
        changed = package(artifacts[0], tmp_path / "app3", 3)
        manifest = tmp_path / "app3" / "models" / "vit" / "3" / "manifest.json"
        manifest.write_text(manifest.read_text() + " ")
        assert "does not hold the models that were packed (changed: vit/3)" in head.deploy(changed, "DEPLOY_FAILED")


def test_a_package_runs_without_a_cluster(
    exported: Exported, python_with_ray: Path, ray_environment: dict[str, str], tmp_path: Path
) -> None:
    """``serve run``, on loopback and without a token, where only names of this machine are answered."""
    app, artifact = tmp_path / "app", exported("vit", "onnx")
    settings = RaySettings(ServerSettings(repository=app / "models"))
    config = package_ray([artifact], app, settings, RayAddresses("127.0.0.1"), name="vit").config
    with (tmp_path / "run.txt").open("w") as said:
        # Ctrl-C ends it; what a shell starts in the background would ignore that, and so would its children
        command = ["env", "--default-signal=INT", python_with_ray.parent / "serve", "run", config]
        running = subprocess.Popen(command, stdout=said, stderr=said, env=ray_environment, cwd=tmp_path)
    try:
        said_so_far = (tmp_path / "run.txt").read_text
        wait_until(lambda: running.poll() is not None or bool(replica_processes()), said_so_far)
        assert running.poll() is None, said_so_far()
        check_answers("1", answer_of(artifact))
        foreign = urllib.request.Request(f"http://{HTTP}/v2/models/vit", headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(foreign, timeout=30)
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(120)
        wait_until(lambda: not replica_processes(), lambda: f"still there: {replica_processes()}")


def check_answers(version: str, expected: Any) -> None:
    for client, address in ((tritonclient.http, HTTP), (tritonclient.grpc, GRPC)):
        tensor = client.InferInput("images", IMAGE.shape, "FP32")
        tensor.set_data_from_numpy(IMAGE)
        with client.InferenceServerClient(address) as connected:
            wait_until(lambda: is_ready(connected), lambda: f"not ready: {address}")  # noqa: B023 - called at once
            answer = connected.infer("vit", [tensor])
            np.testing.assert_allclose(answer.as_numpy("logits"), expected, rtol=1e-4, atol=1e-5)
            content = answer.get_response()
            assert version == (content["model_version"] if isinstance(content, dict) else content.model_version)


def is_ready(client: Any) -> bool:
    """Ray opens its gRPC port some time after the replicas are ready."""
    try:
        return bool(client.is_model_ready("vit"))
    except tritonclient.grpc.InferenceServerException:
        return False


def check_stream(expected: Any) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    tensor = tritonclient.grpc.InferInput("images", IMAGE.shape, "FP32")
    tensor.set_data_from_numpy(IMAGE)
    with tritonclient.grpc.InferenceServerClient(GRPC) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for _ in range(3):
            client.async_stream_infer("vit", [tensor])
            result, error = answers.get(timeout=30)
            assert error is None
            np.testing.assert_allclose(result.as_numpy("logits"), expected, rtol=1e-4, atol=1e-5)
        client.stop_stream()


def check_refusals() -> None:
    for path, method, status in (
        ("/v2/models/stats", "GET", 501),
        ("/metrics", "GET", 501),
        ("/v2/repository/models/vit/load", "POST", 501),
        ("/v2/models/nobody", "GET", 404),
        ("/v2/models/vit/infer", "POST", 400),
    ):
        request = urllib.request.Request(f"http://{HTTP}{path}", b"" if method == "POST" else None, method=method)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=30)
        with caught.value as answer:
            assert (answer.status, list(json.loads(answer.read()))) == (status, ["error"])
    with tritonclient.grpc.InferenceServerClient(GRPC) as client:
        for call in (client.get_inference_statistics, lambda: client.load_model("vit")):
            with pytest.raises(tritonclient.grpc.InferenceServerException) as refused:
                call()
            assert refused.value.status() == "StatusCode.UNIMPLEMENTED"


def check_killed_replica(load: InferenceLoad) -> None:
    """Requests under way on it may fail in a way that clients see, and those that HAProxy sent before it noticed."""
    victim = wait_for_replicas(2)[0]
    with load:
        load.wait_for(100)
        os.kill(victim, signal.SIGKILL)
        moment = time.monotonic()
        wait_until(lambda: len(set(replica_processes()) - {victim}) == 2, lambda: "no other replica")
        load.wait_for(100)
    # HAProxy takes a moment to know. In 24 kills the last failure began 0.03 s later, and no client had more than two
    # on average; a busy machine gets room.
    load.check_killed(moment, noticed=1.0, each=4)


def test_ray_reads_what_was_chosen(python_with_ray: Path, exported: Exported, tmp_path: Path) -> None:
    """YAML and JSON differ in small numbers, and in what a text may hold."""
    batching = BatchSettings(max_delay=1e-05, timeout=1e16)
    server = ServerSettings(repository=Path("/srv/app/models"), threads=2, batching=batching)
    settings = RaySettings(server, {}, Path('/"to" ken: #ä😀 - %'), "1:8", target_ongoing=2.5)
    packed = package_ray([exported("vit", "onnx")], tmp_path / "app", settings)
    command = [str(python_with_ray), "-c", READ_CONFIG, str(packed.config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    arguments = json.loads(packed.config.read_text(encoding="utf-8"))["applications"][0]["args"]
    assert done.stdout.splitlines()[-1] == repr(RaySettings.read(arguments))
