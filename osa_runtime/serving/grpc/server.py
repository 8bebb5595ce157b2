"""gRPC on the running event loop, served by grpc.aio; for compatibility: REST with binary tensors is faster.

The handlers of its calls, ``grpc.health.v1`` among them, see to access, time limits and errors.

Messages arrive as bytes, and every call as a stream: so the token is checked before a message is read, the time of
reading is limited, and parsing can leave the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
import types
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2
from tritonclient.grpc import service_pb2 as pb

from osa_runtime.errors import StorageError
from osa_runtime.serving.engine.engine import Engine
from osa_runtime.serving.engine.limits import LARGE
from osa_runtime.serving.grpc.messages import parse_message
from osa_runtime.serving.grpc.service import OPEN_CALLS, SERVICE, GrpcService, Metadata
from osa_runtime.serving.guard import Guard
from osa_runtime.serving.refusals import LONGEST_NAME, BadRequest, NotFound, TooLarge, TooSlow, Unavailable, Unsupported

IDLE = 75.0  # seconds that a stream may be silent, as a connection of REST
LONG_COPY = 0.002  # seconds
PAUSE = 0.005  # seconds after one, in which everything else goes on
LAST_MESSAGES = 0.25  # seconds after the start of the shutdown, for messages that a stream has already sent
MOST_METADATA = 100
LONGEST_ERROR = 1000  # characters; it travels in a header
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
PERIOD = 0.2  # seconds between checks for watchers
WHOLE = frozenset({"", SERVICE})  # names of the server; all others are models
CHECK = f"{HEALTH}/Check"
# The messages of both versions are the same; newer tools ask for v1 first.
REFLECTIONS = (reflection.SERVICE_NAME, "grpc.reflection.v1.ServerReflection")

Status = health_pb2.HealthCheckResponse
Unary = Callable[[bytes, Metadata], Awaitable[Any]]
Streaming = Callable[[AsyncIterator[bytes], Metadata], AsyncGenerator[Any, None]]

STREAMS = 64  # calls of one connection at a time; further ones wait in the client
SPARE = 64  # connections beyond the limit of calls, so that probes find one
METADATA = 64 << 10  # bytes
HANDSHAKE = 10.0  # seconds from the connection to its first settings
PING = 30.0  # seconds of silence after which a peer is pinged
PONG = 10.0  # seconds to answer a ping
CLIENT_PING = 5.0  # seconds between pings of an idle client


class GrpcServer:
    def __init__(self, engine: Engine, guard: Guard) -> None:
        logging.getLogger("grpc").addHandler(logging.NullHandler())  # our own log has everything of interest
        self._settings = engine.settings
        self._calls = GrpcCalls(engine, guard)
        self._server = grpc.aio.server(options=list(_options(engine).items()))
        self._server.add_generic_rpc_handlers((self._calls,))

    async def start(self) -> int:
        """Listen, and return the port."""
        where = f"{self._settings.host}:{self._settings.grpc_port}"
        try:
            port = self._listen(f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host)
        except RuntimeError as error:
            raise StorageError(f"gRPC cannot listen on {where}: {error}") from error
        await self._server.start()
        return port

    def _listen(self, host: str) -> int:
        settings = self._settings
        if settings.tls_certificate is None or settings.tls_key is None:
            return int(self._server.add_insecure_port(f"{host}:{settings.grpc_port}"))
        pair = settings.tls_key.read_bytes(), settings.tls_certificate.read_bytes()
        credentials = grpc.ssl_server_credentials((pair,))
        return int(self._server.add_secure_port(f"{host}:{settings.grpc_port}", credentials))

    async def stop(self, grace: float) -> None:
        """Refuse new calls, wait for those under way, then close."""
        self._calls.stop()
        await self._server.stop(grace)


def _options(engine: Engine) -> dict[str, Any]:
    settings, limits = engine.settings, engine.settings.limits
    return {
        "grpc.max_receive_message_length": engine.largest_body,
        "grpc.per_message_decompression": 0,  # we unpack ourselves: few at a time, and no further than the limits
        "grpc.max_metadata_size": METADATA,
        "grpc.absolute_max_metadata_size": METADATA,
        "grpc.max_concurrent_streams": min(STREAMS, limits.connections),
        "grpc.max_allowed_incoming_connections": limits.connections + SPARE,
        "grpc.server_handshake_timeout_ms": int(min(HANDSHAKE, settings.batching.timeout) * 1e3),
        "grpc.max_connection_idle_ms": int(IDLE * 1e3),
        "grpc.keepalive_time_ms": int(PING * 1e3),
        "grpc.keepalive_timeout_ms": int(PONG * 1e3),
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.min_ping_interval_without_data_ms": int(CLIENT_PING * 1e3),
        "grpc.so_reuseport": int(settings.workers > 1),  # with one, a port that is taken is an error
    }


class GrpcCalls(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, engine: Engine, guard: Guard) -> None:
        self._engine = engine
        self._service = GrpcService(engine, guard)
        self._longest = engine.settings.batching.timeout
        self._arrivals = Arrivals()
        self._reflection = reflection.aio.ReflectionServicer((SERVICE, HEALTH, reflection.SERVICE_NAME))
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._handlers = {
            f"/{SERVICE}/ModelInfer": self._unary("ModelInfer", self._service.infer),
            f"/{SERVICE}/ModelStreamInfer": self._streaming("ModelStreamInfer", self._infer_stream),
            f"/{HEALTH}/Check": self._unary(CHECK, self._check),
            f"/{HEALTH}/Watch": self._streaming("Watch", self._watch),
        }
        for name in self._service.controls:
            self._handlers[f"/{SERVICE}/{name}"] = self._unary(name, functools.partial(self._control, name))
        for service in REFLECTIONS:
            self._handlers[f"/{service}/ServerReflectionInfo"] = self._streaming("Reflection", self._reflect)

    def service(self, details: Any) -> Any:
        return self._handlers.get(details.method) or self._unknown(details.method[:LONGEST_NAME])

    def stop(self) -> None:
        """End the streams after they have answered what has arrived."""
        self._stopping.set_result(None)

    def _unary(self, name: str, call: Unary) -> Any:
        async def handle(_: Any, context: Any) -> Any:
            try:
                with self._admitted(name, context) as metadata:
                    # no name for the message here: a call that is aborted keeps this frame for a while
                    return (await call(await self._only(context), metadata)).SerializeToString()
            except grpc.aio.BaseError:  # the client has left
                raise
            except Exception as error:  # noqa: BLE001 - becomes the call's status
                await self._refuse(context, error)

        return grpc.stream_unary_rpc_method_handler(handle)

    def _streaming(self, name: str, answers: Streaming) -> Any:
        async def handle(_: Any, context: Any) -> None:
            try:
                with self._admitted(name, context) as metadata:
                    await self._write_all(context, answers(self._contents(context), metadata))
            except grpc.aio.BaseError:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                await self._refuse(context, error)

        return grpc.stream_stream_rpc_method_handler(handle)

    def _unknown(self, method: str) -> Any:
        async def handle(_: Any, context: Any) -> None:
            await self._refuse(context, Unsupported(f"{method} is not part of this server."))

        return grpc.stream_unary_rpc_method_handler(handle)

    @contextlib.contextmanager
    def _admitted(self, name: str, context: Any) -> Iterator[Metadata]:
        """Count the call like a connection of REST; probes are not counted."""
        given = context.invocation_metadata()
        if len(given) > MOST_METADATA:
            raise BadRequest(f"The call has {len(given)} entries of metadata, expected at most {MOST_METADATA}.")
        metadata = dict(given)
        if name in OPEN_CALLS or name == CHECK:
            yield metadata
            return
        self._service.check(name, metadata)
        places = self._engine.connections
        served = places.enter()
        try:
            if not served:
                raise places.refusal()
            yield metadata
        finally:
            places.leave(served)

    async def _only(self, context: Any) -> bytes:
        content = await self._read(context, self._longest)
        if content is None:
            raise BadRequest("The call has no message.")
        return content

    async def _read(self, context: Any, seconds: float, *until: asyncio.Future[None]) -> bytes | None:
        """The next message; None at the end. After ``until``, only messages that were already on their way."""
        reading = self._arrivals.one_by_one(context.read())
        content = await _within(seconds, reading, f"No whole message has come for {seconds} s.", *until)
        return None if content is grpc.aio.EOF else content

    async def _write_all(self, context: Any, answers: AsyncGenerator[Any, None]) -> None:
        async with contextlib.aclosing(answers):
            async for answer in answers:
                write = context.write(answer.SerializeToString())
                await _within(self._longest, write, f"No answer was read for {self._longest} s.")

    async def _contents(self, context: Any) -> AsyncIterator[bytes]:
        while (content := await self._read(context, IDLE, self._stopping)) is not None:
            yield content

    async def _refuse(self, context: Any, error: Exception) -> None:
        refusal = self._service.refusal(error)
        retry = () if refusal.retry_after is None else (("retry-after", str(refusal.retry_after)),)
        await context.abort(grpc.StatusCode[refusal.code], str(refusal)[:LONGEST_ERROR], retry)

    async def _control(self, name: str, content: bytes, _: Metadata) -> Any:
        return await self._service.control(name, _read_control(getattr(pb, f"{name}Request"), content))

    def _infer_stream(self, contents: AsyncIterator[bytes], metadata: Metadata) -> AsyncGenerator[Any, None]:
        return self._service.stream(contents, functools.partial(self._service.stream_answer, metadata=metadata))

    async def _check(self, content: bytes, metadata: Metadata) -> Any:
        """The health of the server, which needs no token, or of a model, as over REST."""
        name = _read_control(health_pb2.HealthCheckRequest, content).service
        if name not in WHOLE:
            self._service.check(CHECK, metadata)
        status = self._status(name)
        if status == Status.SERVICE_UNKNOWN:
            raise NotFound(f"{name[:LONGEST_NAME]!r} is not a model of this server.")
        return Status(status=status)

    async def _watch(self, contents: AsyncIterator[bytes], _: Metadata) -> AsyncGenerator[Any, None]:
        """The status now and whenever it changes; a server that stops says so and ends."""
        async for content in contents:
            name = _read_control(health_pb2.HealthCheckRequest, content).service
            last, stopping = None, False
            while not stopping:
                status, stopping = self._status(name), self._engine.stopping
                if status != last:
                    yield Status(status=status)
                    last = status
                await asyncio.sleep(PERIOD)
            return

    def _status(self, name: str) -> Any:
        """The status that ``/v2/health/ready`` and ``/v2/models/NAME/ready`` report."""
        if name in WHOLE:
            return Status.SERVING if self._engine.ready else Status.NOT_SERVING
        if not self._engine.repository.knows(name):
            return Status.SERVICE_UNKNOWN
        try:
            self._engine.repository.find(name)
        except NotFound:
            return Status.NOT_SERVING
        return Status.NOT_SERVING if self._engine.stopping else Status.SERVING

    async def _reflect(self, contents: AsyncIterator[bytes], _: Metadata) -> AsyncGenerator[Any, None]:
        async def requests() -> AsyncIterator[Any]:
            async for content in contents:
                yield _read_control(reflection_pb2.ServerReflectionRequest, content)

        async for answer in self._reflection.ServerReflectionInfo(requests(), None):
            yield answer


class Arrivals:
    """Copies one message after another. grpc does it in the event loop, twice, as soon as a message has arrived.

    Many large ones in one turn of the loop would stop everything else for half a second.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()  # in the order of arrival

    async def one_by_one(self, reading: Any) -> Any:
        return await self._driven(reading)

    @types.coroutine
    def _driven(self, reading: Any) -> Generator[Any, Any, Any]:
        """``reading`` first suspends itself until its message has arrived; the copy follows."""
        try:
            arrived = reading.send(None)
            try:
                yield arrived
                yield from self._turn.acquire()
            except BaseException as error:
                reading.throw(error)
                raise
            begin = time.perf_counter()
            try:
                while True:
                    yield reading.send(None)
            finally:
                if time.perf_counter() - begin < LONG_COPY:
                    self._turn.release()
                else:
                    asyncio.get_running_loop().call_later(PAUSE, self._turn.release)
        except StopIteration as end:
            return end.value


async def _within(seconds: float, action: Awaitable[Any], late: str, *until: asyncio.Future[None]) -> Any:
    task = asyncio.ensure_future(action)
    try:
        await asyncio.wait((task, *until), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and any(event.done() for event in until):
            await asyncio.wait((task,), timeout=LAST_MESSAGES)
            if not task.done():
                raise Unavailable("The server is stopping; ask again on a new connection.")
        if not task.done():
            raise TooSlow(late)
        return task.result()
    finally:
        task.cancel()


def _read_control(kind: Any, content: bytes) -> Any:
    """A message that carries no tensors."""
    if len(content) > LARGE:
        raise TooLarge(f"The message has {len(content)} bytes, expected at most {LARGE}.")
    return parse_message(kind, content, LARGE)
