"""``/metrics`` for Prometheus. The figures are read from the statistics when someone asks, so that counting is free."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from osa_runtime.serving.engine.engine import Engine
    from osa_runtime.serving.engine.statistics import ModelStatistics, Snapshot

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABELS = ("model", "version")
COUNTERS: dict[str, tuple[str, Callable[[ModelStatistics], float]]] = {
    "requests": ("Requests that were answered or failed", lambda p: p.success.count + p.fail.count),
    "inferences": ("Rows that went through the model", lambda p: p.rows),
    "executions": ("Runs of the model", lambda p: p.executions),
    "retried_batches": ("Batches whose requests were run one by one", lambda p: p.retried_batches),
    "nonfinite_outputs": ("Requests whose outputs were NaN or Inf", lambda p: p.nonfinite),
    "beyond_calibration": (
        "Requests with inputs beyond the examples of a static quantisation",
        lambda p: p.beyond_calibration,
    ),
    "queue_seconds": ("Time that requests waited", lambda p: p.queue.seconds),
    "run_seconds": ("Time that the model ran", lambda p: sum(b.run for b in p.batches.values())),
}


def render_metrics(engine: Engine, figures: Snapshot) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(engine, figures))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, engine: Engine, figures: Snapshot) -> None:
        self._models, self._figures = engine.repository.served(), figures
        self._pages = [([name, str(version)], page) for (name, version), page in sorted(figures.pages.items())]

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        pages, figures = self._pages, self._figures
        for name, (text, read) in COUNTERS.items():
            yield _family(CounterMetricFamily, name, text, [(labels, read(page)) for labels, page in pages])
        failures = [([*labels, str(s)], count) for labels, page in pages for s, count in sorted(page.failures.items())]
        yield _family(CounterMetricFamily, "failures", "Requests that failed, by status", failures, "status")
        latency = [(labels, page.latency.cumulative(), page.latency.sum) for labels, page in pages]
        text = "From arrival to answer of requests that succeeded"
        yield _family(HistogramMetricFamily, "latency_seconds", text, latency)
        rows = [(labels, page.batch_rows.cumulative(), page.batch_rows.sum) for labels, page in pages]
        yield _family(HistogramMetricFamily, "batch_rows", "Rows per run of the model", rows)
        yield self._now("queue", "Requests that wait", figures.queued)
        yield self._now("running", "Requests in the batch that runs", figures.running)
        yield _squarings("", "Squarings of a layer in the latest run", figures.latest)
        yield _squarings("_most", "Most squarings of a layer since its load", figures.most)
        verified = {
            ((model.name, model.version), entry["layer"]): entry["squarings"]
            for model in self._models
            for entry in model.layers
        }
        yield _squarings("_verified", "Most squarings of a layer when it was verified", verified)
        yield GaugeMetricFamily(
            "osa_serve_connections", "Connections that are open, REST and gRPC", value=figures.connections
        )

    def _now(self, name: str, text: str, counts: dict[Any, int]) -> Metric:
        rows = [([m.name, m.version_text], counts.get((m.name, m.version), 0)) for m in self._models]
        return _family(GaugeMetricFamily, name, text, rows)


def _squarings(name: str, text: str, counts: dict[Any, int]) -> Metric:
    rows = [([model, str(version), layer], count) for ((model, version), layer), count in sorted(counts.items())]
    return _family(GaugeMetricFamily, f"squarings{name}", text, rows, "layer")


def _family(kind: Any, name: str, text: str, rows: Iterable[tuple[Any, ...]], *further: str) -> Metric:
    family: Metric = kind(f"osa_serve_{name}", text, labels=(*LABELS, *further))
    for row in rows:
        family.add_metric(*row)  # type: ignore[attr-defined]  # every kind of family has it
    return family
