"""HAProxy with Ray's configuration and ours in it, in front of replicas that end before they answer."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import tritonclient.grpc

from osa_runtime.serving_ray.environment import DEFAULTS
from ray_cluster import ONLY_WITH_ALL

pytestmark = [ONLY_WITH_ALL, pytest.mark.usefixtures("alone")]

PORT = 8000
WAIT = "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER"  # its further lines say how long to wait for a body
PATIENCE = 20  # seconds
Haproxy = Callable[..., None]


class Server:
    """Answers health checks, and other requests if it ``answers``; if not, it ends their connection, or ``hangs``."""

    def __init__(self, *, answers: bool, port: int) -> None:
        self.answers, self.asked, self.hangs = answers, 0, False
        self._socket = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(ConnectionError):  # HAProxy ends health checks when it has seen enough
            self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while line := stream.readline():
                length = 0
                while (field := stream.readline()) not in (b"\r\n", b""):
                    name, _, value = field.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                health = line.startswith(b"GET /-/healthz")
                self.asked += not health
                if not health and self.hangs:
                    time.sleep(PATIENCE)
                if not health and not self.answers:
                    return  # with the body unread, as a process that is killed
                stream.read(length)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nright")

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def haproxy(tmp_path: Path, python_with_ray: Path, ray_environment: dict[str, str]) -> Iterator[Haproxy]:
    script = Path(__file__).parents[1] / "haproxy_of_ray.py"
    with ExitStack() as started:

        def start(*ports: int) -> None:
            command = [str(python_with_ray), str(script), ray_environment["HOME"], str(PORT), *map(str, ports)]
            with (tmp_path / "haproxy.txt").open("w") as said:
                process = subprocess.Popen(command, stdout=said, stderr=said, env=ray_environment)
            started.callback(process.wait)
            started.callback(process.terminate)
            end = time.monotonic() + PATIENCE
            while status("GET", "/-/routes") is None:
                assert process.poll() is None, (tmp_path / "haproxy.txt").read_text()
                assert time.monotonic() < end
                time.sleep(0.1)

        yield start


@contextmanager
def server(*, answers: bool, port: int) -> Iterator[Server]:
    made = Server(answers=answers, port=port)
    try:
        yield made
    finally:
        made.close()


def status(method: str, path: str) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=PATIENCE)
    try:
        connection.request(method, path)
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


def post(connection: http.client.HTTPConnection, size: int, pause: float = 0.0) -> tuple[int, bytes]:
    """Head and body in packets of their own, as most clients send them."""
    connection.putrequest("POST", "/v2/models/m/infer")
    connection.putheader("content-length", str(size))
    connection.endheaders()
    time.sleep(pause)
    connection.send(b"x" * size)
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.mark.parametrize("pause", [0.0, 0.05], ids=["at once", "the body comes later"])
def test_what_a_replica_did_not_answer_goes_to_another(haproxy: Haproxy, pause: float) -> None:
    with server(answers=False, port=7001) as dying, server(answers=True, port=7002):
        haproxy(7001, 7002)
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=PATIENCE)
        answers = [post(connection, 1000, pause) for _ in range(20)]
        connection.close()
        assert answers == [(200, b"right")] * 20
        assert dying.asked > 0


@pytest.mark.parametrize("size", [1000, 1_000_000], ids=["small", "larger than what is kept"])
def test_nobody_left_to_ask_is_an_error_in_json(haproxy: Haproxy, size: int) -> None:
    """The first request of a connection, which is always told."""
    with server(answers=False, port=7001):
        haproxy(7001)
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=PATIENCE)
        code, body = post(connection, size)
        connection.close()
        assert code in (502, 503)
        assert list(json.loads(body)) == ["error"]


def test_no_server_is_503_in_json_with_a_time(haproxy: Haproxy) -> None:
    haproxy()
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=PATIENCE)
    connection.request("GET", "/v2")
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("retry-after")) == (503, "1")
    assert answer.getheader("content-type") == "application/json"
    assert "No replica can take the request" in json.loads(answer.read())["error"]
    connection.close()


def test_a_large_request_on_a_used_connection_ends_without_a_byte(haproxy: Haproxy) -> None:
    """HTTP's sign to send again, which HAProxy gives where it cannot repeat the request itself."""
    with server(answers=True, port=7001) as replica:
        haproxy(7001)
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=PATIENCE)
        assert post(connection, 1000) == (200, b"right")
        replica.answers = False
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            post(connection, 1_000_000)
        connection.close()
        replica.answers = True
        assert post(connection, 1_000_000) == (200, b"right")
        connection.close()


def test_a_replica_that_says_nothing_is_504_in_json(haproxy: Haproxy, ray_environment: dict[str, str]) -> None:
    ray_environment["RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S"] = "1"
    with server(answers=True, port=7001) as replica:
        haproxy(7001)
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=PATIENCE)
        assert post(connection, 1000) == (200, b"right")
        replica.hangs = True
        code, body = post(connection, 1000)
        connection.close()
        assert code == 504
        assert "did not answer in time" in json.loads(body)["error"]


def test_a_body_that_does_not_come_is_408_in_json(haproxy: Haproxy, ray_environment: dict[str, str]) -> None:
    ray_environment[WAIT] = DEFAULTS[WAIT].replace("time 30s", "time 1s")
    with server(answers=True, port=7001) as replica:
        haproxy(7001)
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=PATIENCE)
        connection.putrequest("POST", "/v2/models/m/infer")
        connection.putheader("content-length", "1000")
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status == 408
        assert "did not arrive" in json.loads(answer.read())["error"]
        connection.close()
        assert replica.asked == 0


def test_no_server_is_unavailable_in_grpc(haproxy: Haproxy) -> None:
    haproxy()
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{PORT + 1}") as client:
        with pytest.raises(tritonclient.grpc.InferenceServerException) as refused:
            client.get_server_metadata()
        assert refused.value.status() == "StatusCode.UNAVAILABLE"
