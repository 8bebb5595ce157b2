"""From start to stop: reloads without a lost request, draining, tokens, TLS, refused models."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osa_runtime import load
from serving_process import ServerProcess
from small_models import feeds

pytestmark = pytest.mark.slow

grpcclient = pytest.importorskip("tritonclient.grpc")
from tritonclient.utils import InferenceServerException  # noqa: E402 - after the skip

Exported = Callable[[str, str], Path]
BODY = json.dumps(
    {
        "inputs": [
            {
                "name": "images",
                "datatype": "FP32",
                "shape": [1, 1, 8, 8],
                "data": feeds("vit", 1)["images"].ravel().tolist(),
            }
        ]
    }
)


def call(address: str, path: str, body: str | None = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request("GET" if body is None else "POST", path, body, headers)
    answer = connection.getresponse()
    result = answer.status, answer.read()
    connection.close()
    return result


def metric(address: str, name: str) -> float:
    lines = call(address, "/metrics")[1].decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(3000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never happened")


class Load:
    """Clients that ask without a pause; ``answers`` are (status, version)."""

    def __init__(self, address: str, clients: int = 4) -> None:
        self.answers: list[tuple[int, str]] = []
        self._address = address
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=30)
        while not self._stop.is_set():
            connection.request("POST", "/v2/models/vit/infer", BODY)
            answer = connection.getresponse()
            content = json.loads(answer.read())
            self.answers.append((answer.status, content.get("model_version", content.get("error", ""))))
        connection.close()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)


def test_new_versions_take_over_and_no_request_fails(exported: Exported, tmp_path: Path) -> None:
    source = exported("vit", "onnx")
    shutil.copytree(source, tmp_path / "vit" / "1")
    with ServerProcess("--repository", tmp_path) as server:
        load_ = Load(server.http)
        wait_until(lambda: len(load_.answers) > 20)
        for version in (2, 3):
            shutil.copytree(source, tmp_path / "incoming")
            (tmp_path / "incoming").rename(tmp_path / "vit" / str(version))
            assert call(server.http, "/v2/repository/models/vit/load", "") == (200, b"{}")
            seen = len(load_.answers)
            wait_until(lambda seen=seen: len(load_.answers) > seen + 20)  # type: ignore[misc]
        load_.stop()
        assert {status for status, _ in load_.answers} == {200}
        assert {version for _, version in load_.answers} == {"1", "2", "3"}
        assert load_.answers[-1][1] == "3"
        server.wait_for("model unloaded", version=2)
        assert metric(server.http, 'osa_serve_requests_total{model="vit",version="1"}') > 0  # outlives its model
        assert server.stop() == 0
    assert server.noise == []


def test_watching_takes_changes_up_and_keeps_what_works(exported: Exported, tmp_path: Path) -> None:
    shutil.copytree(exported("vit", "onnx"), tmp_path / "vit" / "1")
    with ServerProcess("--repository", tmp_path, "--watch", "0.1") as server:
        broken = shutil.copytree(exported("vit", "onnx"), tmp_path / "broken")
        (broken / "model.onnx").write_bytes(b"nonsense")
        broken.rename(tmp_path / "vit" / "2")
        server.wait_for("model cannot be loaded", version=2)
        assert call(server.http, "/v2/models/vit/infer", BODY)[0] == 200
        index = json.loads(call(server.http, "/v2/repository/index", "")[1])
        assert [(row["version"], row["state"]) for row in index] == [("1", "READY"), ("2", "UNAVAILABLE")]
        assert "hash differs" in index[1]["reason"]
        whole = shutil.copytree(exported("encoder", "onnx"), tmp_path / "whole")
        whole.rename(tmp_path / "encoder")
        server.wait_for("model loaded", model="encoder")
        assert [e["event"] for e in server.events].count("model cannot be loaded") == 1  # not at every look


def test_unloading_and_loading_again(exported: Exported) -> None:
    with ServerProcess(exported("vit", "onnx")) as server:
        name = exported("vit", "onnx").name
        assert call(server.http, f"/v2/models/{name}/infer", BODY)[0] == 200
        assert call(server.http, f"/v2/repository/models/{name}/unload", "")[0] == 200
        assert call(server.http, f"/v2/models/{name}/infer", BODY)[0] == 404
        assert call(server.http, "/v2/health/ready")[0] == 503
        assert call(server.http, "/v2/health/live")[0] == 200
        assert call(server.http, f"/v2/repository/models/{name}/load", "")[0] == 200
        assert call(server.http, f"/v2/models/{name}/infer", BODY)[0] == 200
        statistics = json.loads(call(server.http, f"/v2/models/{name}/stats")[1])["model_stats"][0]
        assert statistics["inference_stats"]["success"]["count"] == 2  # a reload does not reset them


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_lets_accepted_requests_finish(exported: Exported, number: signal.Signals) -> None:
    folder = exported("vit", "onnx")
    name = folder.name
    with ServerProcess(folder, "--max-delay-ms", "1500", "--log-requests") as server:
        statuses: list[int] = []
        clients = [
            threading.Thread(target=lambda: statuses.append(call(server.http, f"/v2/models/{name}/infer", BODY)[0]))
            for _ in range(3)
        ]
        tensor = grpcclient.InferInput("images", [1, 1, 8, 8], "FP32")
        tensor.set_data_from_numpy(feeds("vit", 1)["images"])
        client = grpcclient.InferenceServerClient(server.grpc)
        answers: list[Any] = []
        client.async_infer(name, [tensor], lambda result, error: answers.append(error or result))
        for thread in clients:
            thread.start()
        wait_until(lambda: metric(server.http, "osa_serve_queue{") == 4)
        server.process.send_signal(number)
        for thread in clients:
            thread.join(30)
        wait_until(lambda: len(answers) == 1)
        assert server.process.wait(30) == 0
        assert statuses == [200, 200, 200]
        assert answers[0].as_numpy("logits").shape == (1, 10)
        server.wait_for("stopped")
        assert len([e for e in server.events if e["event"] == "request" and e["status"] == 200]) == 4
        client.close()


def test_a_killed_server_starts_again_on_its_ports(exported: Exported) -> None:
    folder = exported("vit", "onnx")
    first = ServerProcess(folder)
    connection = http.client.HTTPConnection(first.http, timeout=30)
    connection.request("POST", f"/v2/models/{folder.name}/infer", BODY)
    assert connection.getresponse().status == 200
    first.process.kill()
    assert first.stop() == -signal.SIGKILL
    connection.close()
    ports = (first.http.rpartition(":")[2], first.grpc.rpartition(":")[2])
    with ServerProcess(folder, ports=ports) as second:
        assert (second.http, second.grpc) == (first.http, first.grpc)
        assert call(second.http, f"/v2/models/{folder.name}/infer", BODY)[0] == 200


def test_a_request_that_never_ends_is_given_up(exported: Exported) -> None:
    folder = exported("vit", "onnx")
    with ServerProcess(folder, "--timeout", "0.3") as server:
        host, _, port = server.http.partition(":")
        for start in (
            f"POST /v2/models/{folder.name}/infer HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9\r\n\r\n{{",
            "GET /v2 HT",
        ):
            with socket.create_connection((host, int(port)), 30) as sock:
                sock.sendall(start.encode())
                answer = sock.makefile("rb").read()
            assert answer == b"" or answer.startswith(b"HTTP/1.1 408")
        assert call(server.http, "/v2/health/ready")[0] == 200


def test_a_client_that_leaves_takes_its_request_along(exported: Exported) -> None:
    folder = exported("vit", "onnx")
    with ServerProcess(folder, "--max-delay-ms", "1000") as server:
        host, _, port = server.http.partition(":")
        path, size = f"/v2/models/{folder.name}/infer", len(BODY)
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {size}\r\n\r\n{BODY}"
        with socket.create_connection((host, int(port)), 30) as sock:
            sock.sendall(head.encode())
            wait_until(lambda: metric(server.http, "osa_serve_queue{") == 1)
        wait_until(lambda: metric(server.http, "osa_serve_failures_total{") == 1)
        assert call(server.http, f"/v2/models/{folder.name}/infer", BODY)[0] == 200
        assert metric(server.http, "osa_serve_inferences_total{") == 1


def test_a_grpc_deadline_takes_its_request_along(exported: Exported) -> None:
    folder = exported("vit", "onnx")
    with ServerProcess(folder, "--max-delay-ms", "1500") as server:
        client = grpcclient.InferenceServerClient(server.grpc)
        tensor = grpcclient.InferInput("images", [1, 1, 8, 8], "FP32")
        tensor.set_data_from_numpy(feeds("vit", 1)["images"])
        with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
            client.infer(folder.name, [tensor], client_timeout=0.3)
        wait_until(lambda: metric(server.http, 'osa_serve_failures_total{model="vit-onnx",status="499"') == 1)
        assert client.infer(folder.name, [tensor]).as_numpy("logits").shape == (1, 10)
        assert metric(server.http, "osa_serve_inferences_total{") == 1
        client.close()


def test_a_full_queue_says_when_to_come_back(exported: Exported) -> None:
    folder = exported("vit", "onnx")
    with ServerProcess(folder, "--max-delay-ms", "2000", "--max-queue", "1") as server:
        first = threading.Thread(target=call, args=(server.http, f"/v2/models/{folder.name}/infer", BODY))
        first.start()
        wait_until(lambda: metric(server.http, "osa_serve_queue{") == 1)
        connection = http.client.HTTPConnection(server.http, timeout=30)
        connection.request("POST", f"/v2/models/{folder.name}/infer", BODY)
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("retry-after")) == (503, "1")
        assert "full with 1 requests" in json.loads(answer.read())["error"]
        connection.close()
        first.join(30)


def test_a_token_is_asked_for_everywhere_but_in_health_checks(exported: Exported, tmp_path: Path) -> None:
    folder = exported("vit", "onnx")
    token = "correct-horse-battery"
    (tmp_path / "token").write_text(token + "\n")
    with ServerProcess(folder, "--token-file", tmp_path / "token") as server:
        path = f"/v2/models/{folder.name}/infer"
        for wrong in ({}, {"Authorization": "Bearer no"}, {"Authorization": token}):
            assert call(server.http, path, BODY, **wrong)[0] == 401
            assert call(server.http, "/metrics", **wrong)[0] == 401
        assert call(server.http, "/v2/health/ready")[0] == 200
        right = {"Authorization": f"Bearer {token}"}
        assert call(server.http, path, BODY, **right)[0] == 200
        assert call(server.http, "/metrics", **right)[0] == 200
        client = grpcclient.InferenceServerClient(server.grpc)
        with pytest.raises(InferenceServerException, match="bearer token"):
            client.get_server_metadata()
        metadata = client.get_server_metadata(headers={"authorization": f"Bearer {token}"})
        assert metadata.name == "osa-runtime"
        client.close()
        assert token not in json.dumps(server.events)


def test_tls_and_a_token_on_both_protocols(exported: Exported, tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    chain, key = certificate
    folder, token = exported("vit", "onnx"), "correct-horse-battery"
    (tmp_path / "token").write_text(token)
    options = ["--tls-certificate", chain, "--tls-key", key, "--token-file", tmp_path / "token"]
    with ServerProcess(folder, *options) as server:
        context = ssl.create_default_context(cafile=str(chain))
        connection = http.client.HTTPSConnection(server.http, context=context, timeout=30)
        for headers, status in (({}, 401), ({"Authorization": f"Bearer {token}"}, 200)):
            connection.request("POST", f"/v2/models/{folder.name}/infer", BODY, headers)
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read())) == (status, True)
        connection.close()
        with pytest.raises((OSError, http.client.HTTPException)):  # no TLS, no answer
            call(server.http, "/v2/health/live")
        client = grpcclient.InferenceServerClient(server.grpc, ssl=True, root_certificates=str(chain))
        assert client.is_server_ready()
        tensor = grpcclient.InferInput("images", [1, 1, 8, 8], "FP32")
        tensor.set_data_from_numpy(feeds("vit", 1)["images"])
        with pytest.raises(InferenceServerException, match="bearer token"):
            client.infer(folder.name, [tensor])
        answer = client.infer(folder.name, [tensor], headers={"authorization": f"Bearer {token}"})
        assert answer.as_numpy("logits").shape == (1, 10)
        client.close()
        plain = grpcclient.InferenceServerClient(server.grpc)
        with pytest.raises(InferenceServerException):
            plain.is_server_ready(client_timeout=2)
        plain.close()


def test_rows_of_one_batch_do_not_disturb_each_other(exported: Exported) -> None:
    """Requests with ordinary, huge and NaN values at once: each gets what it gets alone."""
    folder = exported("vit", "onnx")
    alone = load(folder, threads=1)
    images = [np.random.default_rng(i).standard_normal((1, 1, 8, 8)).astype(np.float32) for i in range(12)]
    images[3] *= 30
    images[5] *= 1e30
    images[7][0, 0, 0, 0] = np.nan
    with ServerProcess(folder, "--max-delay-ms", "300", "--max-batch", "12") as server:
        client = grpcclient.InferenceServerClient(server.grpc)
        answers: dict[int, Any] = {}
        for number, image in enumerate(images):
            tensor = grpcclient.InferInput("images", [1, 1, 8, 8], "FP32")
            tensor.set_data_from_numpy(image)

            def keep(result: Any, error: Any, number: int = number) -> None:
                answers[number] = error or result

            client.async_infer(folder.name, [tensor], keep)
        wait_until(lambda: len(answers) == 12)
        assert metric(server.http, "osa_serve_executions_total{") < 12
        client.close()
    for number, image in enumerate(images):
        expected = alone.run({"images": image})["logits"]
        if np.isfinite(expected).all():
            np.testing.assert_allclose(answers[number].as_numpy("logits"), expected, rtol=1e-4, atol=1e-5)
        else:
            assert "NaN or Inf" in str(answers[number])
    assert "Input images holds 1 NaN" in str(answers[7])
