"""REST inference, from the bytes of a request to the bytes of its answer. Both HTTP fronts call it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable
from urllib.parse import unquote

from osa_runtime.errors import OsaError
from osa_runtime.serving.compression import accepted_encoding, compress
from osa_runtime.serving.engine import Answer, Engine
from osa_runtime.serving.guard import Guard
from osa_runtime.serving.job import Job
from osa_runtime.serving.messages import InferenceRequest
from osa_runtime.serving.refusals import BadRequest, Refusal, as_refusal
from osa_runtime.serving.rest_request import read_request
from osa_runtime.serving.rest_response import Headers, write_error, write_response

TARGET = re.compile(rb"/v2/models/([^/?#]{1,400})(?:/versions/([^/?#]{1,40}))?/infer(?:\?.*)?")
WORTH_COMPRESSING = 512  # bytes; below that, compressing costs more than it saves

Reply = Callable[[int, Headers, bytes], None]


class RestInference:
    def __init__(self, engine: Engine, guard: Guard) -> None:
        self.engine = engine
        self._guard = guard
        self._limits = engine.settings.limits

    def handle(self, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes, reply: Reply) -> Job | None:
        """Call ``reply`` once, now or later. The job is for cancelling; None when the answer has been given."""
        try:
            by_name = dict(headers)
            self._guard.check(by_name)
            request = self._read(target, by_name, body)
            return self.engine.submit(request, self._answering(request, by_name, reply))
        except OsaError as error:
            refusal = as_refusal(error)
            reply(refusal.status, *write_error(refusal))
        except Exception as error:  # noqa: BLE001 - a bug of ours must not leave the client waiting
            self._report_bug(error, reply)
        return None

    def _read(self, target: bytes, headers: dict[bytes, bytes], body: bytes) -> InferenceRequest:
        match = TARGET.fullmatch(target)
        if match is None:
            raise BadRequest("The path is not that of an inference request.")
        name, version = match.groups()
        request = read_request(
            unquote(name.decode("latin-1")),
            version.decode("latin-1") if version else "",
            body,
            _text(headers.get(b"inference-header-content-length")),
            _text(headers.get(b"content-encoding")),
            self._limits,
        )
        request.trace = _text(headers.get(b"traceparent")) or ""
        return request

    def _answering(
        self, request: InferenceRequest, headers: dict[bytes, bytes], reply: Reply
    ) -> Callable[[Answer], None]:
        accepts = headers.get(b"accept-encoding")

        def on_answer(answer: Answer) -> None:
            try:
                if isinstance(answer, Refusal):
                    reply(answer.status, *write_error(answer))
                    return
                fields, content = write_response(request, answer)
                encoding = accepted_encoding(accepts.decode("latin-1")) if accepts else None
                if encoding and len(content) >= WORTH_COMPRESSING:
                    content = compress(content, encoding)
                    fields.append((b"content-encoding", encoding.encode()))
                reply(200, fields, content)
            except OsaError as error:
                refusal = as_refusal(error)
                reply(refusal.status, *write_error(refusal))
            except Exception as error:  # noqa: BLE001 - as above
                self._report_bug(error, reply)

        return on_answer

    def _report_bug(self, error: Exception, reply: Reply) -> None:
        self.engine.log.error("request failed unexpectedly", traceback="".join(traceback.format_exception(error)))
        refusal = as_refusal(error)
        reply(refusal.status, *write_error(refusal))


def _text(value: bytes | None) -> str | None:
    return value.decode("latin-1") if value is not None else None
