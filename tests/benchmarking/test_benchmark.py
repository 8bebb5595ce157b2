"""Whole benchmarks of small models: figures, comparisons and refusals. No test looks at a duration."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from osa_runtime import InputError, RunError
from osa_runtime.benchmarking import benchmark as module
from osa_runtime.benchmarking.benchmark import Benchmark, find_difference
from osa_runtime.benchmarking.configurations import BenchmarkSettings
from osa_runtime.benchmarking.memory import measure_memory, memory_can_be_measured
from osa_runtime.benchmarking.timing import Schedule
from small_models import FORMATS, MODELS, feeds

Exported = Callable[[str, str], Path]
SHORT = Schedule(warm_up=0, iterations=2, seconds=0, rounds=2, pause=0)


def short(artifact: Path, **options) -> BenchmarkSettings:
    return BenchmarkSettings(artifact, schedule=SHORT, threads=1, **({"memory": False} | options))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("model", MODELS)
def test_every_artifact_is_measured_against_its_checkpoint(exported: Exported, model: str, kind: str) -> None:
    folder = exported(model, kind)
    lengths = {"tokens": (3, 64)} if model == "encoder" else {}
    benchmark = Benchmark(short(folder, against=folder.parent / model, batches=(1, 2), **lengths))
    assert benchmark.disagreement is None
    result = benchmark.measure()
    described = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    sizes = [(c["batch"], c["tokens"]) for c in described["configurations"]]
    assert sizes == ([(1, None), (2, None)] if model == "vit" else [(1, 3), (2, 3), (1, 64), (2, 64)])
    for configuration in described["configurations"]:
        assert set(configuration["contenders"]) == {"artifact", "eager"}
        assert configuration["ratio"]["median"] > 0
        for figures in configuration["contenders"].values():
            assert 0 < figures["p50_ms"] <= figures["p90_ms"] <= figures["p99_ms"]
            assert figures["calls"] == 2
    assert set(described["load_seconds"]) == {"artifact", "eager"}
    assert described["artifact"]["bytes"] == sum(file.stat().st_size for file in folder.iterdir())
    assert described["artifact"]["placement"]["device"] == "cpu"
    assert not described["trustworthy"], "two calls are too few"


@pytest.mark.parametrize(("kind", "batches"), [("onnx", [1, 8]), ("pt2", [1])])  # a pt2 file does not name its axes
def test_a_model_file_alone_is_measured(exported: Exported, kind: str, batches: list[int]) -> None:
    result = Benchmark(short(exported("vit", kind) / f"model.{kind}")).measure()
    assert [m.configuration.batch for m in result.measurements] == batches
    assert result.artifact["dtype"] is None
    assert result.contenders == ("artifact",)


def test_a_torchscript_file_alone_needs_data(exported: Exported) -> None:
    file = exported("encoder", "torchscript") / "model.pt"
    with pytest.raises(InputError, match="neither type nor shape of tokens, mask"):
        Benchmark(short(file))
    result = Benchmark(short(file, read_data=lambda specs: (feeds("encoder"), ["a note"]))).measure()
    assert result.measurements[0].shapes == {"tokens": (3, 5), "mask": (3, 5)}
    assert result.notes == ("a note",)


def test_the_progress_tells_every_round(exported: Exported) -> None:
    told: list[tuple[str, int, int]] = []
    Benchmark(short(exported("vit", "onnx"), batches=(4,))).measure(lambda *step: told.append(step))
    assert told == [("batch 4", 0, 2), ("batch 4", 1, 2), ("batch 4", 2, 2)]


def test_another_checkpoint_is_named_and_not_timed(exported: Exported, tmp_path: Path) -> None:
    import torch

    from osa_runtime.models import SkiplessViT, ViTConfig, save_checkpoint
    from small_models import SIZES

    torch.manual_seed(1)
    other = save_checkpoint(SkiplessViT(ViTConfig(classes=10, **SIZES)), tmp_path / "other")
    benchmark = Benchmark(short(exported("vit", "onnx"), against=other))
    assert "speed of a wrong answer is not reported" in str(benchmark.disagreement)
    assert "exported from other weights" in str(benchmark.disagreement)
    with pytest.raises(RunError, match="different answers with batch 1"):
        benchmark.measure()


def test_a_checkpoint_of_another_model_is_refused(exported: Exported) -> None:
    folder = exported("encoder", "onnx")
    exported("vit", "onnx")
    with pytest.raises(RunError, match="is it the one that was exported"):
        _ = Benchmark(short(folder, against=folder.parent / "vit")).disagreement


def test_outputs_must_be_finite(exported: Exported) -> None:
    nothing = feeds("encoder") | {"mask": np.zeros((3, 5), bool)}
    with pytest.raises(RunError, match=r"With batch 1, 5 tokens there is nothing to measure: Output logits holds"):
        Benchmark(short(exported("encoder", "onnx"), read_data=lambda specs: (nothing, [])))


@pytest.mark.parametrize(
    ("ours", "theirs", "reason"),
    [
        ([1.0], [1.0], None),
        ([1.0], [1.0 + 1e-6], None),
        ([1.0], [1.1], "output y: relative error"),
        ([np.nan], [np.nan], "NaN or Inf"),
        ([1.0], [1.0, 1.0], "shape"),
    ],
    ids=["equal", "rounding", "different", "NaN", "shape"],
)
def test_agreement(ours: list[float], theirs: list[float], reason: str | None) -> None:
    found = find_difference({"y": np.array(ours, np.float32)}, [np.array(theirs, np.float32)], "onnx", depth=4)
    assert found is None if reason is None else reason in str(found)
    assert "1 outputs, eager has 0" in str(find_difference({"y": np.zeros(1)}, [], "onnx", 4))


@pytest.mark.skipif(not memory_can_be_measured(), reason="only Linux tells the peak of a process")
@pytest.mark.parametrize("against", [False, True], ids=["artifact", "and eager"])
def test_memory_grows_with_the_batch(exported: Exported, against: bool) -> None:
    folder = exported("vit", "onnx")
    other = folder.parent / "vit" if against else None
    result = Benchmark(short(folder, memory=True, against=other, batches=(1, 4_000))).measure()
    assert set(result.memory) == set(result.contenders)
    for grown in result.memory.values():
        small, large = grown.run
        assert 0 < grown.load <= small * 1.5
        assert large - small > 4_000 * 17 * 16 * 4 / 2, "less than half of one activation"


@pytest.mark.skipif(not memory_can_be_measured(), reason="only Linux tells the peak of a process")
def test_a_failure_in_the_other_process_is_told(tmp_path: Path) -> None:
    job = {"contender": "artifact", "path": str(tmp_path), "format": "onnx", "device": "cpu", "threads": 1}
    with pytest.raises(RunError, match=r"memory of the artifact failed: .*is an empty folder"):
        measure_memory(job, [])


def test_memory_that_cannot_be_measured_is_said(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "memory_can_be_measured", lambda: False)
    result = Benchmark(short(exported("vit", "onnx"), memory=True)).measure()
    assert not result.memory
    assert "memory was not measured" in result.notes[0]
    assert result.as_dict()["configurations"][0]["contenders"]["artifact"]["peak_memory_growth"] is None


def test_an_onnx_model_is_measured_without_torch(exported: Exported) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from osa_runtime.benchmarking.benchmark import Benchmark\n"
        "from osa_runtime.benchmarking.configurations import BenchmarkSettings\n"
        "from osa_runtime.benchmarking.timing import Schedule\n"
        "from osa_runtime import MissingDependencyError\n"
        "path = Path(sys.argv[1])\n"
        "Benchmark(BenchmarkSettings(path, schedule=Schedule(0, 1, 0, 1, 0), threads=1, memory=False)).measure()\n"
        "try: Benchmark(BenchmarkSettings(path, against=path))\n"
        "except MissingDependencyError as error: print(error)"
    )
    command = [sys.executable, "-c", script, str(exported("vit", "onnx"))]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    assert "needs torch, which is not installed" in child.stdout
