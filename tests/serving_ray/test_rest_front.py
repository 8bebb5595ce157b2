"""REST in a replica, called as Ray calls it: prefixes, the end of a replica, and what one replica may not answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from osa_runtime.serving.settings import ServerSettings
from osa_runtime.serving_ray.app import Replica, rest_front
from osa_runtime.serving_ray.settings import RaySettings

Messages = list[dict[str, Any]]


class Asked:
    """An ASGI app that notes what it is asked."""

    def __init__(self) -> None:
        self.paths: list[tuple[str, bytes]] = []
        self.closed = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append((scope["path"], scope["raw_path"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def close(self) -> None:
        self.closed += 1


async def call(app: Any, scope: dict[str, Any], *messages: str) -> Messages:
    sent: Messages = []
    waiting = iter(messages)

    async def receive() -> dict[str, Any]:
        return {"type": next(waiting)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


def request(path: str, method: str = "GET", prefix: str = "") -> dict[str, Any]:
    scope = {"type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode()}
    return scope | {"root_path": prefix, "query_string": b"", "headers": [(b"host", b"localhost")]}


@pytest.fixture
def artifact(exported: Any) -> Path:
    return exported("vit", "onnx")


def ask(settings: RaySettings, *scopes: dict[str, Any]) -> list[tuple[int, bytes]]:
    """The answers of a replica."""

    async def run() -> list[tuple[int, bytes]]:
        replica = Replica.__new__(Replica)
        await Replica.__init__(replica, settings)  # as Ray does
        app = replica.__serve_build_asgi_app__()
        answers = [await call(app, scope) for scope in scopes]
        await call(app, {"type": "lifespan"}, "lifespan.startup", "lifespan.shutdown")
        return [(sent[0]["status"], sent[1]["body"]) for sent in answers]

    return asyncio.run(run())


ONE_ONLY = [
    ("/v2/repository/models/vit-onnx/load", "POST", "deploy the application again"),
    ("/v2/repository/models/vit-onnx/unload", "POST", "deploy the application again"),
    ("/v2/models/stats", "GET", "Ray's own metrics"),
    ("/v2/models/vit-onnx/stats", "GET", "Ray's own metrics"),
    ("/v2/models/vit-onnx/versions/1/stats", "GET", "Ray's own metrics"),
    ("/metrics", "GET", "Ray's own metrics"),
]


@pytest.mark.parametrize("prefix", ["", "/digits"], ids=["at the root", "behind a prefix"])
def test_what_reaches_one_replica_only_is_501(prefix: str, artifact: Path) -> None:
    scopes = [request(prefix + path, method, prefix) for path, method, _ in ONE_ONLY]
    answers = ask(RaySettings(ServerSettings((artifact,))), *scopes)
    for (path, _, reason), (status, body) in zip(ONE_ONLY, answers, strict=True):
        assert (path, status) == (path, 501)
        assert reason in json.loads(body)["error"]


def test_what_one_replica_can_answer_it_answers(artifact: Path) -> None:
    scopes = [request(path) for path in ("/v2", "/details", "/v2/models/vit-onnx", "/v2/health/ready")]
    answers = ask(RaySettings(ServerSettings((artifact,))), *scopes)
    assert [status for status, _ in answers] == [200] * len(scopes)
    extensions = json.loads(answers[0][1])["extensions"]
    assert "statistics" not in extensions
    assert "binary_tensor_data" in extensions


def test_without_the_token_nothing_is_told(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-of-20-letters")
    settings = RaySettings(ServerSettings((artifact,)), token_file=tmp_path / "token")
    scopes = [request(path) for path in ("/v2", "/metrics", "/v2/models/vit-onnx")]
    assert [status for status, _ in ask(settings, *scopes)] == [401] * len(scopes)


@pytest.mark.parametrize(
    ("path", "prefix", "seen"),
    [
        ("/v2/models/a%20b/infer", "", "/v2/models/a%20b/infer"),
        ("/models/v2/health/live", "/models", "/v2/health/live"),
        ("/models", "/models", "/"),
    ],
)
def test_the_app_sees_paths_without_the_prefix(path: str, prefix: str, seen: str) -> None:
    app = Asked()
    sent = asyncio.run(call(rest_front(app, app.close), request(path, prefix=prefix)))
    assert sent[0]["status"] == 200
    assert app.paths == [(seen, seen.encode())]


def test_the_end_of_a_replica_closes_the_models_once() -> None:
    app = Asked()
    front = rest_front(app, app.close)
    sent = asyncio.run(call(front, {"type": "lifespan"}, "lifespan.startup", "lifespan.shutdown"))
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert app.closed == 1
