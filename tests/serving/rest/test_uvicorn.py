"""The parts of uvicorn that rest/connection.py rests upon, without a network. `make test-newest` runs this with the
newest release, whatever pyproject.toml allows."""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from osa_runtime.serving.engine.limits import Connections
from osa_runtime.serving.operations.server import HttpServer
from osa_runtime.serving.rest.connection import HttpConnection, protocol_factory

REQUEST = b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n"


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def test_the_release_is_one_that_was_tested(checkout: Path) -> None:
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (line,) = [line for line in project["optional-dependencies"]["serve"] if line.startswith("uvicorn")]
    found = re.fullmatch(r"uvicorn>=([\d.]+),<([\d.]+)", line)
    assert found, f"{line}: expected a range with both ends, since rest/connection.py wraps uvicorn's protocol"
    assert numbers(found[1]) <= numbers(uvicorn.__version__) < numbers(found[2]), (
        f"uvicorn {uvicorn.__version__} is outside the tested range {line}. If everything else in tests/serving passes "
        "with it, raise the end in pyproject.toml; if not, mend rest/connection.py first."
    )


class Transport(asyncio.Transport):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("127.0.0.1", 8000), "peername": ("127.0.0.1", 9)})
        self.sent: list[bytes] = []
        self.reading = True
        self.closed = False

    def writelines(self, pieces: Any) -> None:
        self.sent.append(b"".join(pieces))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 0


class App:
    """Answers with the path, once it may."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.connections: list[Any] = []
        self.may_answer = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        connection = scope["state"]["connection"]
        connection.begin()
        self.asked.append(scope["path"])
        self.connections.append(connection)
        assert await receive() == {"type": "http.request", "body": b"", "more_body": False}
        connection.received()
        await self.may_answer.wait()
        content = scope["path"].encode()
        headers = [(b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})
        connection.end()


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def connected(scenario: Callable[[App, Any, Transport, ServerState], Awaitable[None]]) -> None:
    async def main() -> None:
        app, transport, state = App(), Transport(), ServerState()
        config = uvicorn.Config(app, http=protocol_factory(Connections(1), 30.0), ws="none", lifespan="off")
        config.load()
        create: Any = config.http_protocol_class
        protocol = create(config=config, server_state=state, app_state={})
        protocol.connection_made(transport)
        await scenario(app, protocol, transport, state)
        protocol.connection_lost(None)
        await turns()
        assert not state.connections
        assert not state.tasks

    asyncio.run(main())


def test_the_application_finds_its_connection_and_answers_in_one_piece() -> None:
    async def scenario(app: App, protocol: Any, transport: Transport, _: ServerState) -> None:
        app.may_answer.set()
        protocol.data_received((REQUEST % 1)[:20])
        await turns()
        assert app.asked == []
        protocol.data_received((REQUEST % 1)[20:])
        await turns()
        assert app.connections == [protocol]
        assert isinstance(protocol, HttpConnection)
        (answer,) = transport.sent  # head and body together
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\n/1")

    connected(scenario)


def test_a_request_that_comes_too_soon_waits_outside() -> None:
    async def scenario(app: App, protocol: Any, transport: Transport, _: ServerState) -> None:
        protocol.data_received(REQUEST % 1)
        await turns()
        protocol.data_received(REQUEST % 2)
        await turns()
        assert (app.asked, transport.reading) == (["/1"], False)
        app.may_answer.set()
        await turns()
        assert (app.asked, transport.reading) == (["/1", "/2"], True)
        assert [answer[-2:] for answer in transport.sent] == [b"/1", b"/2"]

    connected(scenario)


def test_of_a_client_that_leaves_the_application_hears() -> None:
    async def scenario(app: App, protocol: Any, transport: Transport, _: ServerState) -> None:
        protocol.data_received(REQUEST % 1)
        await turns()
        left: list[bool] = []
        protocol.watch(lambda: left.append(True))
        transport.closed = True
        protocol.connection_lost(None)
        assert left == [True]
        app.may_answer.set()
        await turns()
        assert transport.sent == []

    connected(scenario)


def test_connections_are_those_that_a_stop_waits_for() -> None:
    async def scenario(app: App, protocol: Any, transport: Transport, state: ServerState) -> None:
        protocol.data_received(REQUEST % 1)
        await turns()
        assert len(state.connections) == 1
        (inner,) = state.connections
        inner.shutdown()  # as uvicorn's own server does; the answer still goes out, then the connection ends
        app.may_answer.set()
        await turns()
        assert [answer[-2:] for answer in transport.sent] == [b"/1"]
        assert transport.closed

    connected(scenario)


def test_the_server_starts_and_stops_without_signals_of_its_own() -> None:
    async def main() -> None:
        config = uvicorn.Config(App(), http=protocol_factory(Connections(1), 30.0), ws="none", lifespan="off", port=0)
        server = HttpServer(config, 30.0)
        sock = config.bind_socket()
        running = asyncio.create_task(server.serve([sock]))
        await asyncio.sleep(0.1)
        assert server.started
        server.should_exit = True
        await asyncio.wait_for(running, 10)

    asyncio.run(main())
