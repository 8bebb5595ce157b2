"""``/metrics`` for Prometheus. The figures are read from the statistics when someone asks, so that counting is free."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from osa_runtime.serving.engine.engine import Engine
    from osa_runtime.serving.engine.statistics import ModelStatistics, Snapshot

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABELS = ("model", "version")


def render_metrics(engine: Engine, figures: Snapshot) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(engine, figures))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, engine: Engine, figures: Snapshot) -> None:
        self._engine, self._figures = engine, figures

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._counters()
        yield self._failures()
        yield self._histogram("latency_seconds", "From arrival to answer of requests that succeeded", "latency")
        yield self._histogram("batch_rows", "Rows per run of the model", "batch_rows")
        yield from self._gauges()

    def _pages(self) -> list[tuple[list[str], ModelStatistics]]:
        return [([name, str(version)], page) for (name, version), page in sorted(self._figures.pages.items())]

    def _counters(self) -> Iterator[Metric]:
        counters = {
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
        for name, (text, read) in counters.items():
            family = CounterMetricFamily(f"osa_serve_{name}", text, labels=LABELS)
            for labels, page in self._pages():
                family.add_metric(labels, read(page))
            yield family

    def _failures(self) -> Metric:
        family = CounterMetricFamily(
            "osa_serve_failures", "Requests that failed, by status", labels=(*LABELS, "status")
        )
        for labels, page in self._pages():
            for status, count in sorted(page.failures.items()):
                family.add_metric([*labels, str(status)], count)
        return family

    def _histogram(self, name: str, text: str, attribute: str) -> Metric:
        family = HistogramMetricFamily(f"osa_serve_{name}", text, labels=LABELS)
        for labels, page in self._pages():
            histogram = getattr(page, attribute)
            family.add_metric(labels, histogram.cumulative(), histogram.sum)
        return family

    def _gauges(self) -> Iterator[Metric]:
        queue = GaugeMetricFamily("osa_serve_queue", "Requests that wait", labels=LABELS)
        running = GaugeMetricFamily("osa_serve_running", "Requests in the batch that runs", labels=LABELS)
        by_layer = (*LABELS, "layer")
        latest = GaugeMetricFamily("osa_serve_squarings", "Squarings of a layer in the latest run", labels=by_layer)
        most = GaugeMetricFamily(
            "osa_serve_squarings_most", "Most squarings of a layer since its load", labels=by_layer
        )
        verified = GaugeMetricFamily(
            "osa_serve_squarings_verified", "Most squarings of a layer when it was verified", labels=by_layer
        )
        for family, counts in ((latest, self._figures.latest), (most, self._figures.most)):
            for ((name, version), layer), count in sorted(counts.items()):
                family.add_metric([name, str(version), layer], count)
        for model in self._engine.repository.served():
            labels, key = [model.name, model.version_text], (model.name, model.version)
            queue.add_metric(labels, self._figures.queued[key])
            running.add_metric(labels, self._figures.running[key])
            for entry in model.layers:
                verified.add_metric([*labels, str(entry["layer"])], entry["squarings"])
        connections = GaugeMetricFamily("osa_serve_connections", "Connections that are open, REST and gRPC")
        connections.add_metric([], self._figures.connections)
        yield from (queue, running, latest, most, verified, connections)
