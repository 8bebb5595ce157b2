"""What uvicorn writes for an answer, as Ray runs it, arrives in one piece."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http import httptools_impl

from osa_runtime.serving_ray.whole_answers import send_whole_answers


class Connection(asyncio.Transport):
    """Keeps every write apart from the others."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def writes_of(app: Any, *requests: bytes) -> list[bytes]:
    async def talk() -> list[bytes]:
        config = uvicorn.Config(app, log_config=None, lifespan="off", server_header=False, date_header=False)
        config.load()
        state: Any = uvicorn.server.ServerState()
        protocol = httptools_impl.HttpToolsProtocol(config, state, {})
        connection = Connection()
        protocol.connection_made(connection)
        for request in requests:
            protocol.data_received(request)
            while state.tasks:
                await asyncio.gather(*state.tasks)
                await asyncio.sleep(0)
        protocol.connection_lost(None)
        return connection.writes

    return asyncio.run(talk())


def answering(*parts: bytes) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % sum(map(len, parts)))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number, part in enumerate(parts, 1):
            await send({"type": "http.response.body", "body": part, "more_body": number < len(parts)})

    return app


@pytest.fixture(autouse=True)
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httptools_impl, "RequestResponseCycle", httptools_impl.RequestResponseCycle)
    send_whole_answers()


REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize("body", [b"answer", b""], ids=["with a body", "without one"])
def test_an_answer_is_one_write(body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
    assert writes_of(answering(body), REQUEST, REQUEST) == [head + body, head + body]


def test_a_streamed_answer_is_whole_in_the_end() -> None:
    writes = writes_of(answering(b"one", b"two", b"three"), REQUEST)
    assert b"".join(writes) == b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\nonetwothree"
    assert len(writes) == 3


def test_an_app_that_fails_still_gives_500(caplog: pytest.LogCaptureFixture) -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError

    (answer,) = writes_of(failing, REQUEST)
    assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert answer.endswith(b"Internal Server Error")
