"""gRPC calls as handlers of HTTP/2 streams. An inference costs no task: its answer is written when it is there."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from osa_runtime.serving.engine import Answer
from osa_runtime.serving.grpc_framing import (
    ANSWER_HEADERS,
    OK_TRAILERS,
    MessageReader,
    error_trailers,
    plain_message,
    write_message,
)
from osa_runtime.serving.grpc_messages import InferMessages, parse_message
from osa_runtime.serving.grpc_response import write_grpc_response
from osa_runtime.serving.grpc_service import Call, GrpcService, Metadata
from osa_runtime.serving.http2_stream import Stream
from osa_runtime.serving.job import Job
from osa_runtime.serving.messages import InferenceRequest
from osa_runtime.serving.refusals import BadRequest, Refusal

STREAM_QUEUE = 256  # messages of one stream that wait to be read


class GrpcCall:
    """What all calls share: reading the message, and ending with a status."""

    def __init__(self, service: GrpcService, metadata: Metadata) -> None:
        self.service, self.metadata = service, metadata
        self.started = False  # headers of the answer have gone

    @functools.cached_property
    def reader(self) -> MessageReader:
        return MessageReader(self.metadata.get("grpc-encoding", "identity"), self.service.largest_message)

    def on_data(self, stream: Stream, data: bytes) -> None:
        try:
            self.reader.feed(data)
        except Refusal as refusal:
            self.fail(stream, refusal)

    def on_end(self, stream: Stream) -> None:
        raise NotImplementedError

    def on_whole(self, stream: Stream, data: bytes) -> None:
        self.on_data(stream, data)
        if not stream.ended_here:  # otherwise it was refused
            self.on_end(stream)

    def on_reset(self, stream: Stream) -> None:
        raise NotImplementedError

    def fail(self, stream: Stream, error: BaseException) -> None:
        refusal = self.service.refusal(error)
        stream.send(b"", b"", error_trailers(refusal, alone=not self.started))


class RefusedCall(GrpcCall):
    """A call that was refused before its message came."""

    def __init__(self, service: GrpcService, metadata: Metadata, refusal: Refusal) -> None:
        super().__init__(service, metadata)
        self._refusal = refusal

    def on_data(self, stream: Stream, data: bytes) -> None:
        """Nobody reads it."""

    def on_end(self, stream: Stream) -> None:
        self.fail(stream, self._refusal)

    def on_reset(self, stream: Stream) -> None:
        """There is nothing to cancel."""


class InferCall(GrpcCall):
    """``messages`` is shared by the calls that have the same headers."""

    def __init__(self, service: GrpcService, metadata: Metadata, messages: InferMessages) -> None:
        super().__init__(service, metadata)
        self._messages = messages
        self._job: Job | None = None

    def on_whole(self, stream: Stream, data: bytes) -> None:
        message = plain_message(data, self.service.largest_message)
        if message is None:
            super().on_whole(stream, data)
        else:
            self._infer(stream, message)

    def on_end(self, stream: Stream) -> None:
        try:
            message = self.reader.single()
        except Refusal as refusal:
            self.fail(stream, refusal)
        else:
            self._infer(stream, message)

    def _infer(self, stream: Stream, message: bytes) -> None:
        try:
            request = self._messages.read(message)
            request.trace = self.metadata.get("traceparent", "")

            def on_answer(answer: Answer) -> None:
                self._answer(stream, request, answer)

            self._job = self.service.engine.submit(request, on_answer, alone=stream.alone)
        except Exception as error:  # noqa: BLE001 - becomes the call's status
            self.fail(stream, error)

    def _answer(self, stream: Stream, request: InferenceRequest, answer: Answer) -> None:
        try:
            if isinstance(answer, Refusal):
                raise answer
            stream.send(ANSWER_HEADERS, write_message(write_grpc_response(request, answer)), OK_TRAILERS)
        except Exception as error:  # noqa: BLE001 - becomes the call's status
            self.fail(stream, error)

    def on_reset(self, stream: Stream) -> None:  # noqa: ARG002 - the handler's signature
        if self._job is not None:
            self._job.cancel()


class UnaryCall(GrpcCall):
    def __init__(self, service: GrpcService, metadata: Metadata, kind: Any, call: Call) -> None:
        super().__init__(service, metadata)
        self._kind, self._call = kind, call
        self._task: asyncio.Task[None] | None = None

    def on_end(self, stream: Stream) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(stream))

    async def _run(self, stream: Stream) -> None:
        try:
            answer = await self._call(parse_message(self._kind, self.reader.single()))
            stream.send(ANSWER_HEADERS, write_message(answer.SerializeToString()), OK_TRAILERS)
        except Exception as error:  # noqa: BLE001 - becomes the call's status
            self.fail(stream, error)

    def on_reset(self, stream: Stream) -> None:
        """A load or unload that has begun runs to its end."""


class StreamCall(GrpcCall):
    def __init__(self, service: GrpcService, metadata: Metadata) -> None:
        super().__init__(service, metadata)
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def on_data(self, stream: Stream, data: bytes) -> None:
        try:
            self.reader.feed(data)
            while (content := self.reader.next()) is not None:
                if self._messages.qsize() >= STREAM_QUEUE:
                    raise BadRequest(f"More than {STREAM_QUEUE} requests of this stream wait; read the answers.")
                self._messages.put_nowait(parse_message(pb.ModelInferRequest, content))
        except Refusal as refusal:
            self.on_reset(stream)
            self.fail(stream, refusal)
            return
        self._start(stream)

    def on_end(self, stream: Stream) -> None:
        self._messages.put_nowait(None)
        self._start(stream)

    def _start(self, stream: Stream) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(stream))

    async def _run(self, stream: Stream) -> None:
        try:
            self.started = True
            stream.send(ANSWER_HEADERS, b"", None)
            async for answer in self.service.stream(self._read(), self.metadata):
                stream.send(b"", write_message(answer.SerializeToString()), None)
            stream.send(b"", b"", OK_TRAILERS)
        except Exception as error:  # noqa: BLE001 - becomes the call's status
            self.fail(stream, error)

    async def _read(self) -> AsyncIterator[Any]:
        while (message := await self._messages.get()) is not None:
            yield message

    def on_reset(self, stream: Stream) -> None:  # noqa: ARG002 - the handler's signature
        if self._task is not None:
            self._task.cancel()
