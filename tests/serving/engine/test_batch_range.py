"""Batches are joined from checked requests and not checked again: they must stay within the range of the batch axis."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from osa_runtime.errors import InputError
from osa_runtime.serving.engine.engine import Engine
from osa_runtime.serving.engine.messages import InferenceRequest
from osa_runtime.serving.logs import Log
from osa_runtime.serving.settings import BatchSettings, ServerSettings
from small_models import feeds

pytestmark = pytest.mark.slow


def limited(source: Path, target: Path, limits: dict[str, int]) -> Path:
    """A copy whose manifest says that the batch axis has this range."""
    folder = shutil.copytree(source, target)
    fields = json.loads((folder / "manifest.json").read_text())
    fields["axes"]["batch"] = limits
    (folder / "manifest.json").write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_batch_is_larger_than_the_model_takes(
    exported: Callable[[str, str], Path], tmp_path: Path, most: int
) -> None:
    folder = limited(exported("vit", "onnx"), tmp_path / "vit", {"max": most})

    async def run() -> tuple[list[float], int]:
        settings = ServerSettings(artifacts=(folder,), batching=BatchSettings(max_delay=0.02))
        engine = Engine(settings, Log("error"))
        await engine.repository.load_all()
        one = [InferenceRequest("vit", "", feeds("vit", 1)) for _ in range(7)]
        answers = await asyncio.gather(*map(engine.infer, one))
        assert all(np.isfinite(answer.outputs["logits"]).all() for answer in answers)
        with pytest.raises(InputError, match="at most"):
            await engine.infer(InferenceRequest("vit", "", feeds("vit", most + 1)))
        ((_, page),) = engine.book.items()
        await engine.close()
        return sorted(page.batches), page.retried_batches

    sizes, retried = asyncio.run(run())
    assert sizes[-1] == most
    assert retried == 0


def test_a_model_that_takes_no_single_row_is_warmed_with_two(
    exported: Callable[[str, str], Path], tmp_path: Path
) -> None:
    folder = limited(exported("vit", "onnx"), tmp_path / "vit", {"min": 2})

    async def run() -> tuple[int, ...]:
        engine = Engine(ServerSettings(artifacts=(folder,)), Log("error"))
        await engine.repository.load_all()
        answer = await engine.infer(InferenceRequest("vit", "", feeds("vit", 2)))
        await engine.close()
        return answer.outputs["logits"].shape

    assert asyncio.run(run()) == (2, 10)
