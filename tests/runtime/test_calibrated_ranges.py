"""Inputs beyond the examples of a static quantisation are named, counted, and answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from osa_runtime import load
from osa_runtime.cli.main import app
from osa_runtime.manifest import CalibrationRecord, Manifest, Quantization
from osa_runtime.quantization import quantize
from osa_runtime.runtime.input_checks import CalibratedRanges
from osa_runtime.serving.engine.engine import Engine
from osa_runtime.serving.engine.messages import InferenceRequest
from osa_runtime.serving.logs import Log
from osa_runtime.serving.settings import ServerSettings
from small_models import feeds

Exported = Callable[[str, str], Path]
INSIDE = {"images": np.zeros((1, 1, 8, 8), np.float32)}
BEYOND = {"images": np.full((1, 1, 8, 8), 100, np.float32)}


@pytest.fixture(scope="module")
def static(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("static")
    np.savez(home / "examples.npz", **feeds("vit", 64))
    quantize(exported("vit", "onnx"), home / "vit", activations="static", calibration=home / "examples.npz")
    return home / "vit"


def test_they_are_named(static: Path, exported: Exported) -> None:
    with load(static) as session:
        assert session.calibrated.beyond(INSIDE) == []
        assert session.calibrated.beyond({"images": INSIDE["images"][:0]}) == []
        (said,) = session.calibrated.beyond(BEYOND)
    assert "images holds values from 100 to 100, but this model was quantised with examples from" in said
    with load(exported("vit", "onnx")) as session:
        assert not session.calibrated
        assert session.calibrated.beyond(BEYOND) == []


def test_osa_run_says_so(static: Path, tmp_path: Path) -> None:
    for name, arrays, expected in (("in", INSIDE, False), ("out", BEYOND, True)):
        np.savez(tmp_path / f"{name}.npz", **arrays)
        result = CliRunner().invoke(app, ["run", str(static), "--input", str(tmp_path / f"{name}.npz"), "--json"])
        assert result.exit_code == 0, result.output
        assert ("this model was quantised with examples" in result.output) == expected


def test_the_server_counts_them(static: Path) -> None:
    async def main() -> int:
        engine = Engine(ServerSettings(artifacts=(static,), threads=1), Log("error"))
        await engine.repository.load_all()
        for arrays in (INSIDE, BEYOND, BEYOND):
            await engine.infer(InferenceRequest("vit", "", dict(arrays)))
        count = engine.book["vit", 1].beyond_calibration
        await engine.close()
        return count

    assert asyncio.run(main()) == 2


@pytest.mark.parametrize("ranges", [None, {}, {"x": ()}, {"x": (1.0,)}, {"x": (1.0, 2.0, 3.0)}])
def test_ranges_that_are_none_say_nothing(ranges: Any) -> None:
    recorded = None if ranges is None else CalibrationRecord(3, "0", ranges)
    described = Quantization("int8", "static", calibration=recorded)
    ranges = CalibratedRanges(Manifest("onnx", (), (), 1, quantization=described))
    assert not ranges
    assert ranges.beyond({"x": np.ones(3, np.float32)}) == []
