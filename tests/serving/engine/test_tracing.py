"""OpenTelemetry: a span per inference below the caller's, and nothing where nobody looks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osa_runtime.serving.engine.engine import Engine
from osa_runtime.serving.engine.execution import Tracing
from osa_runtime.serving.engine.messages import InferenceRequest
from osa_runtime.serving.logs import Log
from osa_runtime.serving.refusals import BadRequest
from osa_runtime.serving.settings import ServerSettings

trace = pytest.importorskip("opentelemetry.trace")
sdk = pytest.importorskip("opentelemetry.sdk.trace")
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402 - after the skip
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

Exported = Callable[[str, str], Path]
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def ask(folder: Path, *arrays: Any) -> list[Any]:
    async def main() -> list[Any]:
        engine = Engine(ServerSettings(artifacts=(folder,), threads=1), Log("error"))
        await engine.repository.load_all()
        requests = [
            InferenceRequest(folder.name, "", {"images": a}, id=str(i), trace=f"00-{TRACE}-{PARENT}-01")
            for i, a in enumerate(arrays)
        ]
        answers = await asyncio.gather(*map(engine.infer, requests), return_exceptions=True)
        await engine.close()
        return answers

    return asyncio.run(main())


def test_every_inference_is_a_span(exported: Exported, spans: InMemorySpanExporter) -> None:
    good = np.zeros((2, 1, 8, 8), np.float32)
    answers = ask(exported("vit", "onnx"), good, np.full_like(good, 1e38))
    assert isinstance(answers[1], BadRequest)
    found = sorted(spans.get_finished_spans(), key=lambda span: str(span.attributes["osa.request_id"]))
    assert [span.attributes["http.response.status_code"] for span in found] == [200, 422]
    assert [span.status.is_ok for span in found] == [True, False]
    for span in found:
        assert span.name == "infer vit-onnx"
        assert span.attributes["osa.rows"] == 2
        assert f"{span.context.trace_id:032x}" == TRACE
        assert f"{span.parent.span_id:016x}" == PARENT
        assert span.start_time < span.end_time


def test_without_a_provider_nothing_is_traced(exported: Exported) -> None:
    assert not Tracing().active
    assert len(ask(exported("vit", "onnx"), np.zeros((1, 1, 8, 8), np.float32))) == 1


def test_a_fault_in_tracing_leaves_nobody_waiting(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("the collector is gone")

    monkeypatch.setattr(Tracing, "active", True)
    monkeypatch.setattr(Tracing, "record", broken)
    (answer,) = ask(exported("vit", "onnx"), np.zeros((1, 1, 8, 8), np.float32))
    assert isinstance(answer, RuntimeError)  # which the transports log, and answer with 500
