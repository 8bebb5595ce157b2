"""OpenTelemetry spans, where its API is installed and the process has set a tracer provider up."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osa_runtime.serving.engine.execution import Job
    from osa_runtime.serving.engine.messages import InferenceRequest


class Tracing:
    """``active`` is false where no one would see the spans; then they cost nothing."""

    def __init__(self) -> None:
        self._tracer: Any = None
        self._propagate: Any = None
        self._status: Any = None
        try:
            trace: Any = importlib.import_module("opentelemetry.trace")
            propagate: Any = importlib.import_module("opentelemetry.propagate")
        except ImportError:
            return
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return  # the API alone, without an SDK behind it
        self._tracer = trace.get_tracer("osa_runtime.serving")
        self._propagate = propagate
        self._status = trace.StatusCode.ERROR

    @property
    def active(self) -> bool:
        return self._tracer is not None

    def record(
        self, model: str, version: str, request: InferenceRequest, job: Job, seconds: float, status: int
    ) -> None:
        """One span from arrival to answer, below the caller's span where its ``traceparent`` came along."""
        if self._tracer is None:
            return
        end = time.time_ns()
        carrier = {"traceparent": str(request.trace)} if request.trace else {}
        span = self._tracer.start_span(
            f"infer {model}",
            context=self._propagate.extract(carrier),
            start_time=end - int(seconds * 1e9),
            attributes={
                "osa.model": model,
                "osa.version": version,
                "osa.rows": job.extent.rows,
                "osa.request_id": request.id,
                "http.response.status_code": status,
            },
        )
        if job.error is not None:
            span.set_status(self._status, str(job.error))
        span.end(end)
