"""The calls of gRPC on the same engine as REST, independent of the transport: a message or a refusal for each."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from google.protobuf.json_format import ParseDict
from tritonclient.grpc import service_pb2 as pb

from osa_runtime.errors import OsaError
from osa_runtime.serving.engine.engine import Engine
from osa_runtime.serving.engine.limits import LARGE
from osa_runtime.serving.engine.messages import InferenceRequest
from osa_runtime.serving.engine.model import ServedModel
from osa_runtime.serving.engine.repository import check_load_parameters
from osa_runtime.serving.grpc.messages import (
    is_packed,
    parse_request,
    read_grpc_parameters,
    read_grpc_request,
    write_grpc_response,
)
from osa_runtime.serving.guard import Guard
from osa_runtime.serving.protocol import descriptions
from osa_runtime.serving.protocol.requests import LONGEST_ID, CheckShapes
from osa_runtime.serving.refusals import NotFound, Refusal, as_refusal

SERVICE = "inference.GRPCInferenceService"
OPEN_CALLS = frozenset({"ServerLive", "ServerReady"})  # as in REST, for probes
STREAM_WINDOW = 64  # requests of one stream that are under way at a time

Metadata = Mapping[str, str]
Call = Callable[[Any], Awaitable[Any]]
Check = Callable[[Any], CheckShapes]  # of a message


class GrpcService:
    """``controls`` has every call but inference by name: the fields of its answer, or a coroutine that returns them."""

    def __init__(self, engine: Engine, guard: Guard) -> None:
        self.engine = engine
        self._guard = guard
        self._max_tensor = engine.settings.limits.tensor
        self.controls: dict[str, Callable[[Any], Any]] = {
            "ServerLive": lambda _: {"live": True},
            "ServerReady": lambda _: {"ready": engine.ready},
            "ServerMetadata": lambda _: descriptions.server_metadata(engine),
            "ModelReady": self._model_ready,
            "ModelMetadata": lambda message: descriptions.model_metadata(engine, self._find(message)),
            "ModelConfig": lambda message: {"config": descriptions.model_config(engine, self._find(message))},
            "ModelStatistics": lambda message: descriptions.statistics(engine, message.name, message.version),
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }

    def check(self, call: str, metadata: Metadata) -> None:
        if call not in OPEN_CALLS:
            self._guard.check_token(metadata.get("authorization", "").encode())

    async def infer(self, source: Any, metadata: Metadata) -> Any:
        """``source`` is a ModelInferRequest, or its bytes."""
        _, answer = await self._ask([source], metadata)
        if isinstance(answer, Refusal):
            raise answer
        return answer

    async def _ask(self, source: list[Any], metadata: Metadata) -> tuple[str, Any]:
        """The request's id, and its answer or refusal. ``source`` is emptied: large messages are not kept."""
        identity = ""
        try:
            packed = isinstance(source[0], bytes) and is_packed(source[0])
            size = len(source[0]) if isinstance(source[0], bytes) else source[0].ByteSize()
            if size <= LARGE and not packed:
                identity, request = self._read(source.pop())
                return identity, await self._answer(request, metadata)
            room = size + self.engine.largest_body if packed else size
            async with self.engine.large.room(room, held=size):
                identity, request = await self.engine.large.submit(self._read, source.pop(), self._check)
                return identity, await self._answer(request, metadata)
        except Exception as error:  # noqa: BLE001 - becomes the status of the call
            return identity, self.refusal(error)

    def _read(self, source: Any, check: Check | None = None) -> tuple[str, InferenceRequest | Refusal]:
        """The id, and the request or its refusal: in a stream, a refusal carries the id of its request."""
        if isinstance(source, bytes):
            message, raw = parse_request(source, self.engine.largest_body)
        else:
            message, raw = source, source.raw_input_contents
        try:
            checked = (lambda _: None) if check is None else check(message)
            return message.id, read_grpc_request(message, raw, self._max_tensor, checked)
        except Refusal as refusal:
            return message.id[:LONGEST_ID], refusal

    def _check(self, message: Any) -> CheckShapes:
        return self.engine.repository.find(message.model_name, message.model_version).check_shapes

    async def _answer(self, request: InferenceRequest | Refusal, metadata: Metadata) -> Any:
        if isinstance(request, Refusal):
            raise request
        request.trace = metadata.get("traceparent", "")
        return await self.engine.large.write(write_grpc_response, request, await self.engine.infer(request))

    async def stream(self, messages: AsyncIterator[Any], answer: Call) -> AsyncGenerator[Any, None]:
        """Answer in the order of the requests; no further one is read while too many are under way."""
        waiting: asyncio.Queue[asyncio.Future[Any] | None] = asyncio.Queue(STREAM_WINDOW)
        reader = asyncio.create_task(_read_stream(messages, answer, waiting))
        try:
            while (task := await waiting.get()) is not None:
                yield await task
            await reader  # raises what ended it
        finally:
            reader.cancel()
            while not waiting.empty():
                task = waiting.get_nowait()
                if task is not None:
                    task.cancel()

    async def stream_answer(self, source: Any, metadata: Metadata) -> Any:
        """The answer to one message of a stream; an error is an answer, too."""
        identity, answer = await self._ask([source], metadata)
        if not isinstance(answer, Refusal):
            return pb.ModelStreamInferResponse(infer_response=answer)
        message = pb.ModelStreamInferResponse(error_message=str(answer))
        message.infer_response.id = identity
        return message

    async def control(self, call: str, message: Any) -> Any:
        """The answer to a call other than inference."""
        found = self.controls[call](message)
        return ParseDict(await found if inspect.isawaitable(found) else found, getattr(pb, f"{call}Response")())

    def _model_ready(self, message: Any) -> dict[str, bool]:
        try:
            self._find(message)
        except NotFound:
            return {"ready": False}  # as Triton answers; over REST it is an error
        return {"ready": True}

    async def _index(self, message: Any) -> dict[str, Any]:
        return {"models": await self.engine.repository.index(message.ready)}

    async def _load(self, message: Any) -> dict[str, Any]:
        check_load_parameters(dict(message.parameters))
        await self.engine.load(message.model_name)
        return {}

    async def _unload(self, message: Any) -> dict[str, Any]:
        read_grpc_parameters(message.parameters)
        await self.engine.unload(message.model_name)
        return {}

    def _find(self, message: Any) -> ServedModel:
        return self.engine.repository.find(message.name, message.version)

    def refusal(self, error: BaseException) -> Refusal:
        """The refusal that the client receives; unexpected errors go to the log."""
        if not isinstance(error, OsaError):
            text = "".join(traceback.format_exception(error))
            self.engine.log.error("request failed unexpectedly", traceback=text)
        refusal = as_refusal(error)
        for each in (error, error.__context__, refusal):
            if each is not None:
                each.__traceback__ = None  # its frames hold the message, which may be large
        return refusal


async def _read_stream(
    messages: AsyncIterator[Any], answer: Call, waiting: asyncio.Queue[asyncio.Future[Any] | None]
) -> None:
    try:
        async for message in messages:
            await waiting.put(asyncio.ensure_future(answer(message)))
    finally:
        await waiting.put(None)
