"""REST and gRPC on one event loop, from the first model loaded to the last request answered."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import importlib
import os
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn

from osa_runtime.errors import OsaError, StorageError
from osa_runtime.serving.engine.engine import Engine
from osa_runtime.serving.engine.siblings import Channel
from osa_runtime.serving.guard import Guard
from osa_runtime.serving.logs import Log
from osa_runtime.serving.rest.app import RestApp
from osa_runtime.serving.rest.connection import IDLE_TIME, protocol_factory
from osa_runtime.serving.settings import ServerSettings, is_loopback

if TYPE_CHECKING:
    from osa_runtime.serving.grpc.server import GrpcServer

T = TypeVar("T")
HANDSHAKE = 10.0  # seconds for that of TLS
UNTAKEN = 20_000  # milliseconds for which the kernel keeps an answer that a client does not read


class HttpServer(uvicorn.Server):
    """uvicorn raises SIGTERM again once it has stopped, and gRPC calls would be lost, so we handle signals ourselves.

    Its connections would have a minute for the TLS handshake, in which no limit applies to them.
    """

    def __init__(self, config: uvicorn.Config, longest: float) -> None:
        super().__init__(config)
        self._handshake = min(HANDSHAKE, longest) if config.is_ssl else None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        config, loop = self.config, asyncio.get_running_loop()
        protocol: Any = config.http_protocol_class
        create = functools.partial(protocol, config=config, server_state=self.server_state, app_state={})
        self.servers = [
            await loop.create_server(
                create, sock=sock, ssl=config.ssl, ssl_handshake_timeout=self._handshake, backlog=config.backlog
            )
            for sock in sockets or ()
        ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """``addresses`` has the real ports once ``on_ready`` is called.

    ``unloaded`` are models that were unloaded while another process was in this worker's place.
    """

    def __init__(
        self,
        settings: ServerSettings,
        log: Log,
        on_ready: Callable[[Server], None] = lambda _: None,
        siblings: Channel | None = None,
        unloaded: frozenset[str] = frozenset(),
    ) -> None:
        self._settings, self._log, self._on_ready = settings, log, on_ready
        self._siblings, self._unloaded = siblings, unloaded
        self._stop = asyncio.Event()
        self.addresses: dict[str, str] = {}
        self.engine = Engine(settings, log, siblings)

    async def run(self) -> None:
        """Serve until a signal or ``stop``; then finish requests under way and return."""
        own_signals(self.stop)
        _check_tls(self._settings)
        guard = Guard(self._settings.token, loopback=is_loopback(self._settings.host))
        port = self._settings.http_port
        sock = None if port is None else bind(self._settings.host, port, shared=self._settings.workers > 1)
        grpc = None
        try:
            await self.engine.repository.load_all(self._unloaded)
            grpc = await self._start_grpc(guard)
            http = await self._start_http(guard, sock)
        except BaseException:
            if sock is not None:
                sock.close()
            if grpc is not None:
                await grpc.stop(0)
            await self.engine.close()
            raise
        gc.collect()
        gc.freeze()  # these objects stay; the collector need not visit them again
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
        server = HttpServer(_http_config(self._settings, app), self._settings.batching.timeout)
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
        from osa_runtime.serving.grpc.server import GrpcServer

        if self._settings.workers == 1:
            bind(self._settings.host, self._settings.grpc_port, shared=False).close()  # grpc does not report the reason
        server = GrpcServer(self.engine, guard)
        port = await server.start()
        self.addresses["grpc"] = _address(self._settings.host, port)
        return server

    def _announce(self) -> None:
        if self._siblings is not None:
            self._siblings.listen(self._on_question, self.stop)
            self._siblings.tell("ready", self.addresses)
            return
        warn_if_open(self._settings, self._log)
        models = [f"{m.name}/{m.version}" for m in self.engine.repository.served()]
        self._log.info("ready", models=models, **self.addresses)
        self._on_ready(self)

    async def _on_question(self, what: str, argument: Any) -> Any:
        """Answer a question of another worker or of the parent."""
        if what == "snapshot":
            return self.engine.own_snapshot()
        if what == "announce":
            return self._on_ready(self)
        if what == "load":
            return await self.engine.repository.load(argument)
        return await self.engine.repository.unload(argument)

    async def _watch(self) -> None:
        assert self._settings.watch
        while True:
            await asyncio.sleep(self._settings.watch)
            try:
                await self.engine.repository.refresh()
            except (OsaError, OSError) as error:
                self._log.warning("the repository cannot be read", reason=str(error))

    async def _drain(self, http: tuple[HttpServer, asyncio.Task[None]] | None, grpc: GrpcServer | None) -> None:
        """Stop listening, let both protocols finish their requests, then close the models."""
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


def _http_config(settings: ServerSettings, app: RestApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=protocol_factory(app.engine.connections, settings.batching.timeout),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=round(IDLE_TIME),
        timeout_graceful_shutdown=max(1, round(settings.drain)),
        ssl_certfile=str(settings.tls_certificate) if settings.tls_certificate else None,
        ssl_keyfile=str(settings.tls_key) if settings.tls_key else None,
    )


def own_signals(stop: Callable[[], None], leave: Callable[[], None] = lambda: None) -> None:
    """Call ``stop`` at the first SIGTERM or SIGINT; at the second, ``leave`` and end at once."""
    asked = False

    def handle() -> None:
        nonlocal asked
        if asked:
            leave()
            os._exit(1)
        asked = True
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):  # not in the main thread
            asyncio.get_running_loop().add_signal_handler(number, handle)


def bind(host: str, port: int, *, shared: bool) -> socket.socket:
    """Bind before models are loaded, to report a taken port at once. ``shared`` lets other processes bind it."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # of Linux; its connections have it, too
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNTAKEN)
    if shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((host, port))
    except (OSError, OverflowError) as error:
        sock.close()
        raise StorageError(f"Cannot listen on {host}:{port}: {error}. Choose another.") from error
    sock.set_inheritable(True)
    return sock


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end on the fastest event loop available."""
    return_freed_memory()
    try:
        loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    except ImportError:  # uvloop does not exist for Windows
        loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def warn_if_open(settings: ServerSettings, log: Log) -> None:
    if settings.is_open:
        log.warning("other machines can reach this server, and no token is required", host=settings.host)


def _check_tls(settings: ServerSettings) -> None:
    certificate, key = settings.tls_certificate, settings.tls_key
    if certificate is not None and key is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
        except OSError as error:
            raise StorageError(f"The certificate {certificate} with the key {key} cannot be used: {error}.") from error


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # glibc's parameters of mallopt
LARGE = 1 << 20  # bytes


def return_freed_memory() -> None:
    """Make glibc return freed memory, which it keeps for each thread; other C libraries are left alone."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((MMAP_THRESHOLD, LARGE), (TRIM_THRESHOLD, LARGE), (ARENA_MAX, 2)):
            mallopt(parameter, value)
