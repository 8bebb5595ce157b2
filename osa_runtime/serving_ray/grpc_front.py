"""gRPC in a replica: Ray's proxy calls a method for each call of the protocol, and the embedded server answers."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc import service_pb2 as pb

from osa_runtime.serving.engine.engine import Engine
from osa_runtime.serving.grpc.service import GrpcService, Metadata
from osa_runtime.serving.guard import Guard
from osa_runtime.serving.refusals import Unsupported
from osa_runtime.serving.rest.body import body_too_large
from osa_runtime.serving_ray.rest_front import check_call, server_metadata

METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}
STREAM = "ModelStreamInfer"


class GrpcFront:
    def __init__(self, engine: Engine, guard: Guard) -> None:
        self._service = GrpcService(engine, guard)
        self._limit = engine.settings.limits.body

    async def call(self, name: str, message: Any, context: Any) -> Any:
        """Answer a call. Errors are set on the context: Ray would log an exception and send it with a traceback."""
        metadata = dict(context.invocation_metadata())
        try:
            return await self._answer(name, message, metadata)
        except Exception as error:  # noqa: BLE001 - becomes the call's status
            self._refuse(context, error)
            return GetMessageClass(METHODS[name].output_type)()

    async def _answer(self, name: str, message: Any, metadata: Metadata) -> Any:
        self._service.check(name, metadata)
        check_call(name)
        if message.ByteSize() > self._limit:
            raise body_too_large(self._limit)
        if name == "ModelInfer":
            return await self._service.infer(message, metadata)
        if name == "ServerMetadata":
            return ParseDict(server_metadata(), pb.ServerMetadataResponse())
        if name not in self._service.unary:
            raise Unsupported(f"{name} is not part of this server.")
        return await self._service.unary[name][1](message)

    async def stream(self, messages: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        metadata = dict(context.invocation_metadata())
        try:
            self._service.check(STREAM, metadata)
            answers = functools.partial(self._service.stream_answer, metadata=metadata)
            async for answer in self._service.stream(messages, answers):
                yield answer
        except Exception as error:  # noqa: BLE001 - becomes the call's status
            self._refuse(context, error)

    def _refuse(self, context: Any, error: Exception) -> None:
        refusal = self._service.refusal(error)
        context.set_code(grpc.StatusCode[refusal.code])
        context.set_details(str(refusal))
