"""REST in a replica, called as Ray calls it: prefixes, the end of a replica, and what one replica may not answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from osa_runtime.serving.guard import Guard
from osa_runtime.serving_ray.replica import RestFront

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


def ask(app: Asked, path: str, method: str = "GET", prefix: str = "", token: str | None = None) -> tuple[int, bytes]:
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "root_path": prefix}
    sent = call(app, scope | {"headers": []}, token=token)
    return sent[0]["status"], sent[1]["body"]


def call(app: Asked, scope: dict[str, Any], *messages: str, token: str | None = None) -> Messages:
    sent: Messages = []
    waiting = iter(messages)

    async def receive() -> dict[str, Any]:
        return {"type": next(waiting)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(RestFront(app, Guard(token), app.close)(scope, receive, send))
    return sent


@pytest.mark.parametrize(
    ("path", "method", "reason"),
    [
        ("/v2/repository/models/digits/load", "POST", "deploy the application again"),
        ("/v2/repository/models/digits/unload", "POST", "deploy the application again"),
        ("/v2/models/stats", "GET", "Ray's own metrics"),
        ("/v2/models/digits/stats", "GET", "Ray's own metrics"),
        ("/v2/models/digits/versions/1/stats", "GET", "Ray's own metrics"),
        ("/metrics", "GET", "Ray's own metrics"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "/digits"], ids=["at the root", "behind a prefix"])
def test_what_reaches_one_replica_only_is_501(path: str, method: str, reason: str, prefix: str) -> None:
    app = Asked()
    status, body = ask(app, prefix + path, method, prefix)
    assert status == 501
    assert reason in json.loads(body)["error"]
    assert app.paths == []


def test_server_metadata_does_not_promise_statistics() -> None:
    status, body = ask(Asked(), "/v2")
    assert status == 200
    assert "statistics" not in json.loads(body)["extensions"]
    assert "binary_tensor_data" in json.loads(body)["extensions"]


@pytest.mark.parametrize("path", ["/v2", "/metrics", "/v2/models/digits"])
def test_without_the_token_nothing_is_told(path: str) -> None:
    app = Asked()
    assert ask(app, path, token="a-token-of-20-letters")[0] == 401
    assert app.paths == []


@pytest.mark.parametrize(
    ("path", "prefix", "seen"),
    [
        ("/v2/models/a%20b/infer", "", "/v2/models/a%20b/infer"),
        ("/models/v2/health/live", "/models", "/v2/health/live"),
        ("/models", "/models", "/"),
        ("/v2/models/stats2", "", "/v2/models/stats2"),
    ],
)
def test_the_app_sees_paths_without_the_prefix(path: str, prefix: str, seen: str) -> None:
    app = Asked()
    assert ask(app, path, prefix=prefix)[0] == 200
    assert app.paths == [(seen, seen.encode())]


def test_the_end_of_a_replica_closes_the_models_once() -> None:
    app = Asked()
    sent = call(app, {"type": "lifespan"}, "lifespan.startup", "lifespan.shutdown")
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert app.closed == 1
