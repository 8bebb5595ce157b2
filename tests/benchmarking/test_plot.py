"""The lines and titles of the figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from osa_runtime.benchmarking.configurations import Configuration
from osa_runtime.benchmarking.plot import draw_benchmark
from osa_runtime.benchmarking.result import BenchmarkResult, Measurement, ratio, summarise


def result(sizes: list[tuple[int, int | None]], eager: bool) -> BenchmarkResult:
    def blocks(factor: int, batch: int, tokens: int | None) -> list[list[int]]:
        return [[factor * batch * (tokens or 1) * (10_000 + i) for i in range(6)] for _ in range(6)]

    measurements = []
    for batch, tokens in sizes:
        ours, theirs = blocks(1, batch, tokens), blocks(3, batch, tokens)
        figures = {"artifact": summarise(ours, batch)} | ({"eager": summarise(theirs, batch)} if eager else {})
        found = ratio(ours, theirs) if eager else None
        measurements.append(Measurement(Configuration(batch, tokens), {}, figures, None, found))
    artifact = {"path": "a_$x$_model", "placement": {"provider": "CPUExecutionProvider", "device": "cpu"}}
    return BenchmarkResult(artifact, None, {}, {"threads": 2}, "", {}, tuple(measurements))


GRID = [(batch, tokens) for batch in (1, 2, 4, 8, 16, 32) for tokens in (256, 16)]


@pytest.mark.parametrize(
    ("sizes", "lines"),
    [([(1, None), (8, None)], ["artifact", "eager"]), ([(1, 16), (8, 16)], ["16 tokens"]), (GRID, ["batch 32"])],
    ids=["batches", "one length", "batches and lengths"],
)
def test_a_drawing_names_its_lines(tmp_path: Path, sizes: list[tuple[int, int | None]], lines: list[str]) -> None:
    pytest.importorskip("matplotlib")
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none"}):  # text as text, to be found
        draw_benchmark(result(sizes, eager=True), tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for text in (*lines, "Latency", "Throughput", "a_$x$_model", "2 threads"):
        assert text in drawn
    assert "NOISY" not in drawn
