"""A cluster of three nodes: every replica answers, one may be killed, and their number may change, all under load."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

import osa_runtime
from inference_load import InferenceLoad
from osa_runtime.packaging.ray_application import package_ray
from osa_runtime.packaging.ray_config import RayAddresses
from ray_cluster import ONLY_WITH_ALL, RayCluster, serving, wait_for_replicas
from small_models import feeds

Exported = Callable[[str, str], Path]

pytestmark = [pytest.mark.slow, ONLY_WITH_ALL]

HTTP, GRPC = "127.0.0.1:8000", "127.0.0.1:8001"
MODEL = "vit-onnx"


@pytest.fixture
def artifact(exported: Exported) -> Path:
    return exported("vit", "onnx")


def wait_for_port(address: str, seconds: float = 60.0) -> None:
    """Ray opens its gRPC port some time after the replicas are ready."""
    host, _, port = address.partition(":")
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1.0).close()
            return
        except OSError:
            assert time.monotonic() < end, f"nothing listens on {address} after {seconds} s"
            time.sleep(0.2)


@pytest.fixture
def cluster(
    artifact: Path, tmp_path: Path, python_with_ray: Path, ray_environment: dict[str, str], alone: None
) -> Iterator[RayCluster]:
    """Deployed from a package, with one proxy, since three nodes share one machine."""
    packed = package_ray([artifact], tmp_path / "app", {"replicas": 2}, RayAddresses(location="HeadOnly"))
    with RayCluster(python_with_ray, packed.config, ray_environment) as running:
        assert running.nodes == 3
        wait_for_replicas(2)
        wait_for_port(GRPC)
        yield running


def test_replicas_on_three_nodes(
    cluster: RayCluster,
    artifact: Path,
    python_with_ray: Path,
    ray_environment: dict[str, str],
    subtests: pytest.Subtests,
) -> None:
    """One test, since the cluster takes its time to start."""
    image = feeds("vit", 1)["images"].astype(np.float32)
    with osa_runtime.load(artifact) as session:
        expected = session.run({"images": image})["logits"].astype(np.float32)
    load = lambda: InferenceLoad(8000, MODEL, image, expected)  # noqa: E731 - a name for a frequent line
    arguments = {"artifacts": [str(artifact)], "max_batch": 32}
    with subtests.test("both protocols answer as the session does"):
        check_both_protocols(image, expected)
    with subtests.test("a stream of gRPC answers before it ends"):
        check_stream(image, expected)
    with subtests.test("one replica does not answer for all"):
        check_refusals()
    with subtests.test("both replicas are asked"):
        check_both_are_asked(load())
    with subtests.test("a replica is killed under load"):
        for _ in range(3):
            check_killed_replica(load())
    with subtests.test("replicas come and go under load"):
        check_scaling(cluster, arguments, load())
    with subtests.test("a second one of the same name is refused where Ray is joined"):
        command = [str(python_with_ray), "-m", "osa_runtime.cli", "serve", str(artifact), "--engine", "ray"]
        command += ["--http-port", "0", "--grpc-port", "0"]
        environment = ray_environment | {"RAY_ADDRESS": cluster.address}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 2
        assert "An application named osa runs on this Ray already" in done.stderr
    with subtests.test("a missing artifact fails the deployment and says why"):
        broken = arguments | {"artifacts": [str(artifact.parent / "nowhere")]}
        assert "failed to load 'nowhere'" in cluster.deploy(broken, name="broken", route="/broken")["error"]


@ONLY_WITH_ALL
def test_replicas_follow_the_load(cluster: RayCluster, artifact: Path) -> None:
    image = feeds("vit", 1)["images"].astype(np.float32)
    with osa_runtime.load(artifact) as session:
        expected = session.run({"images": image})["logits"].astype(np.float32)
    scale = {"replicas": "1:3", "target_ongoing": 1, "upscale_delay": 1, "downscale_delay": 1}
    cluster.deploy({"artifacts": [str(artifact)]} | scale)
    wait_for_replicas(1)
    with InferenceLoad(8000, MODEL, image, expected) as load:
        wait_for_replicas(3)
        load.wait_for(50)
    load.check_perfect()
    wait_for_replicas(1)


def check_both_protocols(image: Any, expected: Any) -> None:
    for client in (tritonclient.http, tritonclient.grpc):
        tensor = client.InferInput("images", image.shape, "FP32")
        tensor.set_data_from_numpy(image)
        with client.InferenceServerClient(HTTP if client is tritonclient.http else GRPC) as connected:
            assert connected.is_server_ready()
            assert connected.is_model_ready(MODEL)
            answer = connected.infer(MODEL, [tensor], request_id="7")
            np.testing.assert_allclose(answer.as_numpy("logits"), expected, rtol=1e-4, atol=1e-5)


def check_refusals() -> None:
    for path, method, status in (
        ("/v2/models/stats", "GET", 501),
        (f"/v2/repository/models/{MODEL}/load", "POST", 501),
        ("/v2/models/nobody", "GET", 404),
        (f"/v2/models/{MODEL}/infer", "POST", 400),
    ):
        request = urllib.request.Request(f"http://{HTTP}{path}", b"" if method == "POST" else None, method=method)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=30)
        with caught.value as answer:
            assert (answer.status, list(json.loads(answer.read()))) == (status, ["error"])
    with tritonclient.grpc.InferenceServerClient(GRPC) as client:
        for call in (client.get_inference_statistics, lambda: client.load_model(MODEL)):
            with pytest.raises(tritonclient.grpc.InferenceServerException) as refused:
                call()
            assert refused.value.status() == "StatusCode.UNIMPLEMENTED"


def check_both_are_asked(load: InferenceLoad) -> None:
    before = serving()
    with load:
        load.wait_for(200)
    after = serving()
    load.check_perfect()
    assert len(after) == 2
    assert all(after[name] > before[name] for name in after), (before, after)


def check_killed_replica(load: InferenceLoad) -> None:
    """What was under way on it is repeated by HAProxy, or fails so that the client can tell; nothing else does."""
    victim = wait_for_replicas(2)[0]
    with load:
        load.wait_for(100)
        os.kill(victim, signal.SIGKILL)
        moment = time.monotonic()
        while victim in wait_for_replicas(2):  # until Ray has put another one in its place
            time.sleep(0.25)
        load.wait_for(100)
    load.check_killed(moment)


def check_stream(image: Any, expected: Any) -> None:
    """An answer comes while the stream is open: HAProxy does not wait for its end."""
    answers: queue.Queue[Any] = queue.Queue()
    tensor = tritonclient.grpc.InferInput("images", image.shape, "FP32")
    tensor.set_data_from_numpy(image)
    with tritonclient.grpc.InferenceServerClient(GRPC) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for _ in range(3):
            client.async_stream_infer(MODEL, [tensor])
            result, error = answers.get(timeout=30)
            assert error is None
            np.testing.assert_allclose(result.as_numpy("logits"), expected, rtol=1e-4, atol=1e-5)
        client.stop_stream()


def check_scaling(cluster: RayCluster, arguments: dict[str, Any], load: InferenceLoad) -> None:
    with load:
        for number in (3, 1):
            assert cluster.deploy(arguments | {"replicas": number}) == {"deployed": "osa"}
            wait_for_replicas(number)
            load.wait_for(50)
    load.check_perfect()
