"""The gRPC surface: every call of the protocol on the same engine as REST."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from osa_runtime.errors import OsaError
from osa_runtime.serving import descriptions
from osa_runtime.serving.engine import Engine
from osa_runtime.serving.grpc_request import read_grpc_parameters, read_grpc_request
from osa_runtime.serving.grpc_response import write_grpc_response
from osa_runtime.serving.guard import Guard
from osa_runtime.serving.refusals import Refusal, as_refusal
from osa_runtime.serving.repository import check_load_parameters

STREAM_WINDOW = 64  # requests of one stream that are under way at a time
Context = Any


class GrpcService(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # the stubs are untyped
    def __init__(self, engine: Engine, guard: Guard) -> None:
        self._engine = engine
        self._guard = guard
        self._limit = engine.settings.limits.tensor

    async def ModelInfer(self, message: Any, context: Context) -> Any:
        try:
            metadata = dict(context.invocation_metadata())
            self._check_token(metadata)
            return await self._infer(message, metadata)
        except Exception as error:  # noqa: BLE001 - becomes the call's status
            return await self._abort(context, error)

    async def _infer(self, message: Any, metadata: dict[str, Any]) -> Any:
        request = read_grpc_request(message, self._limit)
        request.trace = str(metadata.get("traceparent", ""))
        return write_grpc_response(request, await self._engine.infer(request))

    async def ModelStreamInfer(self, messages: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        """Answers come in the order of the requests; an error is an answer, and the stream goes on."""
        metadata = dict(context.invocation_metadata())
        try:
            self._check_token(metadata)
        except Refusal as refusal:
            await self._abort(context, refusal)
        waiting: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue(STREAM_WINDOW)
        reader = asyncio.create_task(self._read_stream(messages, metadata, waiting))
        try:
            while (task := await waiting.get()) is not None:
                yield await task
        finally:
            reader.cancel()
            while not waiting.empty():
                task = waiting.get_nowait()
                if task is not None:
                    task.cancel()

    async def _read_stream(self, messages: Any, metadata: dict[str, Any], waiting: asyncio.Queue[Any]) -> None:
        try:
            async for message in messages:
                await waiting.put(asyncio.create_task(self._stream_answer(message, metadata)))
        finally:
            await waiting.put(None)

    async def _stream_answer(self, message: Any, metadata: dict[str, Any]) -> Any:
        try:
            return pb.ModelStreamInferResponse(infer_response=await self._infer(message, metadata))
        except Exception as error:  # noqa: BLE001 - it is this request's answer, not the stream's end
            answer = pb.ModelStreamInferResponse(error_message=str(self._refusal(error)))
            answer.infer_response.id = message.id
            return answer

    async def ServerLive(self, _: Any, context: Context) -> Any:  # noqa: ARG002 - the stubs' signature
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, _: Any, context: Context) -> Any:  # noqa: ARG002 - the stubs' signature
        return pb.ServerReadyResponse(ready=self._engine.ready)

    async def ServerMetadata(self, _: Any, context: Context) -> Any:
        return await self._answer(context, lambda: _parsed(descriptions.server_metadata(), pb.ServerMetadataResponse()))

    async def ModelReady(self, message: Any, context: Context) -> Any:
        def ready() -> Any:
            self._find(message)
            return pb.ModelReadyResponse(ready=True)

        return await self._answer(context, ready)

    async def ModelMetadata(self, message: Any, context: Context) -> Any:
        def metadata() -> Any:
            fields = descriptions.model_metadata(self._engine, self._find(message))
            return _parsed(fields, pb.ModelMetadataResponse())

        return await self._answer(context, metadata)

    async def ModelConfig(self, message: Any, context: Context) -> Any:
        def config() -> Any:
            fields = descriptions.model_config(self._engine, self._find(message))
            return _parsed({"config": fields}, pb.ModelConfigResponse())

        return await self._answer(context, config)

    async def ModelStatistics(self, message: Any, context: Context) -> Any:
        def statistics() -> Any:
            fields = descriptions.statistics(self._engine, message.name, message.version)
            return _parsed(fields, pb.ModelStatisticsResponse())

        return await self._answer(context, statistics)

    async def RepositoryIndex(self, message: Any, context: Context) -> Any:
        async def index() -> Any:
            rows = await asyncio.to_thread(self._engine.repository.index, message.ready)
            return _parsed({"models": rows}, pb.RepositoryIndexResponse())

        return await self._answer(context, index)

    async def RepositoryModelLoad(self, message: Any, context: Context) -> Any:
        async def load() -> Any:
            check_load_parameters(dict(message.parameters))
            await self._engine.repository.load(message.model_name)
            return pb.RepositoryModelLoadResponse()

        return await self._answer(context, load)

    async def RepositoryModelUnload(self, message: Any, context: Context) -> Any:
        async def unload() -> Any:
            read_grpc_parameters(message.parameters)
            await self._engine.repository.unload(message.model_name)
            return pb.RepositoryModelUnloadResponse()

        return await self._answer(context, unload)

    def _find(self, message: Any) -> Any:
        return self._engine.repository.find(message.name, message.version)

    async def _answer(self, context: Context, compute: Callable[[], Any | Awaitable[Any]]) -> Any:
        try:
            self._check_token(dict(context.invocation_metadata()))
            answer = compute()
            return await answer if asyncio.iscoroutine(answer) else answer
        except Exception as error:  # noqa: BLE001 - becomes the call's status
            return await self._abort(context, error)

    def _check_token(self, metadata: dict[str, Any]) -> None:
        self._guard.check_token(str(metadata.get("authorization", "")).encode())

    async def _abort(self, context: Context, error: Exception) -> None:
        refusal = self._refusal(error)
        trailing = () if refusal.retry_after is None else (("retry-after", str(refusal.retry_after)),)
        await context.abort(getattr(grpc.StatusCode, refusal.code), str(refusal), trailing)

    def _refusal(self, error: Exception) -> Refusal:
        if not isinstance(error, OsaError):
            text = "".join(traceback.format_exception(error))
            self._engine.log.error("request failed unexpectedly", traceback=text)
        return as_refusal(error)


def _parsed(fields: dict[str, Any], message: Any) -> Any:
    return ParseDict(fields, message)
