"""The calls of gRPC on the same engine as REST, whatever carries them: a message in, a message out, or a refusal."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from google.protobuf.json_format import ParseDict
from tritonclient.grpc import service_pb2 as pb

from osa_runtime.errors import OsaError
from osa_runtime.serving import descriptions
from osa_runtime.serving.engine import Engine
from osa_runtime.serving.grpc_request import read_grpc_parameters, read_grpc_request
from osa_runtime.serving.grpc_response import write_grpc_response
from osa_runtime.serving.guard import Guard
from osa_runtime.serving.messages import InferenceRequest
from osa_runtime.serving.model import ServedModel
from osa_runtime.serving.refusals import NotFound, Refusal, as_refusal
from osa_runtime.serving.repository import check_load_parameters

SERVICE = "inference.GRPCInferenceService"
OPEN_CALLS = frozenset({"ServerLive", "ServerReady"})  # as in REST, for probes
STREAM_WINDOW = 64  # requests of one stream that are under way at a time

Metadata = Mapping[str, str]
Call = Callable[[Any], Awaitable[Any]]


class GrpcService:
    """``unary`` has every call but inference by name, with the type of its message."""

    def __init__(self, engine: Engine, guard: Guard) -> None:
        self.engine = engine
        self._guard = guard
        self._limit = engine.settings.limits.tensor
        self.largest_message = engine.settings.limits.body
        self.unary: dict[str, tuple[Any, Call]] = {
            "ServerLive": (pb.ServerLiveRequest, self.server_live),
            "ServerReady": (pb.ServerReadyRequest, self.server_ready),
            "ServerMetadata": (pb.ServerMetadataRequest, self.server_metadata),
            "ModelReady": (pb.ModelReadyRequest, self.model_ready),
            "ModelMetadata": (pb.ModelMetadataRequest, self.model_metadata),
            "ModelConfig": (pb.ModelConfigRequest, self.model_config),
            "ModelStatistics": (pb.ModelStatisticsRequest, self.model_statistics),
            "RepositoryIndex": (pb.RepositoryIndexRequest, self.repository_index),
            "RepositoryModelLoad": (pb.RepositoryModelLoadRequest, self.load),
            "RepositoryModelUnload": (pb.RepositoryModelUnloadRequest, self.unload),
        }

    def check(self, call: str, metadata: Metadata) -> None:
        if call not in OPEN_CALLS:
            self._guard.check_token(metadata.get("authorization", "").encode())

    def read(self, message: Any, metadata: Metadata) -> InferenceRequest:
        request = read_grpc_request(message, self._limit)
        request.trace = metadata.get("traceparent", "")
        return request

    async def infer(self, message: Any, metadata: Metadata) -> Any:
        request = self.read(message, metadata)
        return pb.ModelInferResponse.FromString(write_grpc_response(request, await self.engine.infer(request)))

    async def stream(self, messages: AsyncIterator[Any], metadata: Metadata) -> AsyncIterator[Any]:
        """Answers come in the order of the requests; an error is an answer, and the stream goes on."""
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

    async def _read_stream(
        self, messages: AsyncIterator[Any], metadata: Metadata, waiting: asyncio.Queue[asyncio.Task[Any] | None]
    ) -> None:
        try:
            async for message in messages:
                await waiting.put(asyncio.create_task(self._stream_answer(message, metadata)))
        finally:
            await waiting.put(None)

    async def _stream_answer(self, message: Any, metadata: Metadata) -> Any:
        try:
            return pb.ModelStreamInferResponse(infer_response=await self.infer(message, metadata))
        except Exception as error:  # noqa: BLE001 - it is this request's answer, not the stream's end
            answer = pb.ModelStreamInferResponse(error_message=str(self.refusal(error)))
            answer.infer_response.id = message.id
            return answer

    async def server_live(self, _: Any) -> Any:
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, _: Any) -> Any:
        return pb.ServerReadyResponse(ready=self.engine.ready)

    async def server_metadata(self, _: Any) -> Any:
        return ParseDict(descriptions.server_metadata(), pb.ServerMetadataResponse())

    async def model_ready(self, message: Any) -> Any:
        try:
            self._find(message)
        except NotFound:
            return pb.ModelReadyResponse(ready=False)  # as Triton answers; over REST it is an error
        return pb.ModelReadyResponse(ready=True)

    async def model_metadata(self, message: Any) -> Any:
        return ParseDict(descriptions.model_metadata(self.engine, self._find(message)), pb.ModelMetadataResponse())

    async def model_config(self, message: Any) -> Any:
        fields = {"config": descriptions.model_config(self.engine, self._find(message))}
        return ParseDict(fields, pb.ModelConfigResponse())

    async def model_statistics(self, message: Any) -> Any:
        fields = descriptions.statistics(self.engine, message.name, message.version)
        return ParseDict(fields, pb.ModelStatisticsResponse())

    async def repository_index(self, message: Any) -> Any:
        rows = await self.engine.repository.index(message.ready)
        return ParseDict({"models": rows}, pb.RepositoryIndexResponse())

    async def load(self, message: Any) -> Any:
        check_load_parameters(dict(message.parameters))
        await self.engine.repository.load(message.model_name)
        return pb.RepositoryModelLoadResponse()

    async def unload(self, message: Any) -> Any:
        read_grpc_parameters(message.parameters)
        await self.engine.repository.unload(message.model_name)
        return pb.RepositoryModelUnloadResponse()

    def _find(self, message: Any) -> ServedModel:
        return self.engine.repository.find(message.name, message.version)

    def refusal(self, error: BaseException) -> Refusal:
        """What the client is told; what nobody expected goes to the log."""
        if not isinstance(error, OsaError):
            text = "".join(traceback.format_exception(error))
            self.engine.log.error("request failed unexpectedly", traceback=text)
        return as_refusal(error)
