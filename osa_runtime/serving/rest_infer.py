"""REST inference, from the bytes of a request to the bytes of its answer. Both HTTP fronts call it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable

from osa_runtime.errors import OsaError
from osa_runtime.serving.compression import compress
from osa_runtime.serving.engine import Answer, Engine
from osa_runtime.serving.guard import Guard
from osa_runtime.serving.job import Job
from osa_runtime.serving.messages import InferenceRequest
from osa_runtime.serving.refusals import Refusal, as_refusal
from osa_runtime.serving.rest_head import RequestHead, read_head
from osa_runtime.serving.rest_request import read_request
from osa_runtime.serving.rest_response import Headers, write_error, write_response

WORTH_COMPRESSING = 512  # bytes; below that, compressing costs more than it saves

Reply = Callable[[int, Headers, bytes], None]


class RestInference:
    def __init__(self, engine: Engine, guard: Guard) -> None:
        self.engine = engine
        self._guard = guard
        self._limits = engine.settings.limits

    def open(self, target: bytes, headers: Iterable[tuple[bytes, bytes]], reply: Reply) -> RequestHead | None:
        """The head of a request that may ask; None when the refusal has been given to ``reply``."""
        try:
            by_name = dict(headers)
            self._guard.check(by_name)
            return read_head(target, by_name)
        except Exception as error:  # noqa: BLE001 - a bug of ours must not leave the client waiting
            self._fail(error, reply)
        return None

    def infer(self, head: RequestHead, body: bytes, reply: Reply, *, alone: bool = False) -> Job | None:
        """Call ``reply`` once, now or later. The job is for cancelling; None when the answer has been given."""
        try:
            request = read_request(head, body, self._limits)
            return self.engine.submit(request, self._answering(request, head, reply), alone=alone)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error, reply)
        return None

    def _answering(self, request: InferenceRequest, head: RequestHead, reply: Reply) -> Callable[[Answer], None]:
        def on_answer(answer: Answer) -> None:
            try:
                if isinstance(answer, Refusal):
                    raise answer
                fields, content = write_response(request, answer)
                encoding = head.answer_encoding
                if encoding and len(content) >= WORTH_COMPRESSING:
                    content = compress(content, encoding)
                    fields.append((b"content-encoding", encoding.encode()))
                reply(200, fields, content)
            except Exception as error:  # noqa: BLE001 - as above
                self._fail(error, reply)

        return on_answer

    def _fail(self, error: Exception, reply: Reply) -> None:
        if not isinstance(error, OsaError):
            self.engine.log.error("request failed unexpectedly", traceback="".join(traceback.format_exception(error)))
        refusal = as_refusal(error)
        reply(refusal.status, *write_error(refusal))
