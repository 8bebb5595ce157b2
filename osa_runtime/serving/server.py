"""REST and gRPC on one event loop, from the first model loaded to the last request answered."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import uvicorn

from osa_runtime.errors import OsaError, StorageError
from osa_runtime.serving.engine import Engine
from osa_runtime.serving.fast_http import protocol_factory
from osa_runtime.serving.guard import Guard
from osa_runtime.serving.logs import Log
from osa_runtime.serving.rest_app import RestApp
from osa_runtime.serving.settings import ServerSettings

if TYPE_CHECKING:
    from osa_runtime.serving.grpc_server import GrpcServer

KEEP_ALIVE = 75  # seconds that an idle connection stays open


class HttpServer(uvicorn.Server):
    """uvicorn raises SIGTERM again once it has stopped, and gRPC calls would be lost: the signals are ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """``addresses`` has the real ports once ``on_ready`` is called."""

    def __init__(self, settings: ServerSettings, log: Log, on_ready: Callable[[Server], None] = lambda _: None) -> None:
        self._settings, self._log, self._on_ready = settings, log, on_ready
        self._stop = asyncio.Event()
        self._signals = 0
        self.addresses: dict[str, str] = {}
        self.engine = Engine(settings, log)

    async def run(self) -> None:
        """Serve until a signal or ``stop``; then answer what is under way and return."""
        self._own_signals()
        guard = Guard(self._settings.token)
        sock = _bind(self._settings) if self._settings.http_port is not None else None
        grpc = None
        try:
            await self.engine.repository.load_all()
            grpc = await self._start_grpc(guard)
            http = await self._start_http(guard, sock)
        except BaseException:
            if sock is not None:
                sock.close()
            if grpc is not None:
                await grpc.stop(0)
            await self.engine.close()
            raise
        watcher = asyncio.create_task(self._watch()) if self._settings.watch else None
        self._announce()
        await self._stop.wait()
        if watcher is not None:
            watcher.cancel()
        await self._drain(http, grpc)

    def stop(self) -> None:
        self._stop.set()

    async def _start_http(
        self, guard: Guard, sock: socket.socket | None
    ) -> tuple[HttpServer, asyncio.Task[None]] | None:
        if sock is None:
            return None
        app = RestApp(self.engine, guard)
        server = HttpServer(_http_config(self._settings, app))
        task = asyncio.create_task(server.serve([sock]))
        while not server.started:
            if task.done():
                await task
                raise StorageError("The HTTP server did not start.")
            await asyncio.sleep(0.005)
        host, port = sock.getsockname()[:2]
        self.addresses["http"] = _address(host, port)
        return server, task

    async def _start_grpc(self, guard: Guard) -> GrpcServer | None:
        if self._settings.grpc_port is None:
            return None
        from osa_runtime.serving.grpc_server import GrpcServer

        server = GrpcServer(self.engine, guard)
        port = await server.start()
        self.addresses["grpc"] = _address(self._settings.host, port)
        return server

    def _announce(self) -> None:
        if self._settings.is_open:
            self._log.warning(
                "other machines can reach this server, and it asks for no token", host=self._settings.host
            )
        models = [f"{m.name}/{m.version}" for m in self.engine.repository.served()]
        self._log.info("ready", models=models, **self.addresses)
        self._on_ready(self)

    async def _watch(self) -> None:
        assert self._settings.watch
        while True:
            await asyncio.sleep(self._settings.watch)
            try:
                await self.engine.repository.refresh()
            except (OsaError, OSError) as error:
                self._log.warning("the repository cannot be read", reason=str(error))

    async def _drain(self, http: tuple[HttpServer, asyncio.Task[None]] | None, grpc: GrpcServer | None) -> None:
        """Stop listening, let both protocols finish what they have taken, then the models."""
        self._log.info("stopping", seconds=self._settings.drain)
        self.engine.stopping = True
        waits: list[Any] = []
        if http is not None:
            http[0].should_exit = True
            waits.append(http[1])
        if grpc is not None:
            waits.append(grpc.stop(self._settings.drain))
        await asyncio.gather(*waits)
        await self.engine.close()
        self._log.info("stopped")

    def _own_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):  # not in the main thread
                loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals > 1:
            os._exit(1)  # asked twice: leave at once
        self.stop()


def _http_config(settings: ServerSettings, app: RestApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=protocol_factory(app.inference),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(settings.drain)),
        ssl_certfile=str(settings.tls_certificate) if settings.tls_certificate else None,
        ssl_keyfile=str(settings.tls_key) if settings.tls_key else None,
    )


def _bind(settings: ServerSettings) -> socket.socket:
    """Before the models are loaded, so that a taken port is said at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((settings.host, settings.http_port))
    except (OSError, OverflowError) as error:
        sock.close()
        raise StorageError(
            f"Cannot listen on {settings.host}:{settings.http_port}: {error}. Choose another."
        ) from error
    sock.set_inheritable(True)
    return sock


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
