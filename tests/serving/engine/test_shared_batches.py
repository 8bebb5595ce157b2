"""A request's answer does not depend on who shares its batch: lengths, masks, norms, rows, with real models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osa_runtime import load
from osa_runtime.parity.tolerances import relative_tolerance
from osa_runtime.serving.engine.engine import Engine
from osa_runtime.serving.engine.messages import InferenceRequest
from osa_runtime.serving.logs import Log
from osa_runtime.serving.refusals import Refusal
from osa_runtime.serving.settings import BatchSettings, ServerSettings

Exported = Callable[[str, str], Path]


def ask(folder: Path, requests: list[dict[str, Any]]) -> tuple[list[Any], int]:
    """The answers to requests that arrive together, and how often the model ran."""

    async def main() -> tuple[list[Any], int]:
        batching = BatchSettings(max_batch=64, max_delay=0.05)
        engine = Engine(ServerSettings(artifacts=(folder,), threads=1, batching=batching), Log("error"))
        await engine.repository.load_all()
        calls = [engine.infer(InferenceRequest(folder.name, "", feeds)) for feeds in requests]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        runs = engine.book[folder.name, 1].executions
        await engine.close()
        return list(answers), runs

    return asyncio.run(main())


def assert_as_alone(folder: Path, requests: list[dict[str, Any]], answers: list[Any]) -> None:
    session = load(folder, threads=1)
    assert session.manifest is not None
    tolerance = relative_tolerance("onnx", "fp32", session.manifest.depth or 1)
    for feeds, answer in zip(requests, answers, strict=True):
        full = feeds if "tokens" not in feeds else {"mask": np.ones(feeds["tokens"].shape, bool)} | feeds
        expected = session.run(full)["logits"]
        allowed = tolerance * float(np.abs(expected).max())
        np.testing.assert_allclose(answer.outputs["logits"], expected, rtol=0, atol=allowed)


def test_sequences_of_many_lengths(exported: Exported) -> None:
    folder = exported("encoder", "onnx")
    chance = np.random.default_rng(1)
    requests: list[dict[str, Any]] = []
    for length in (1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 63, 64):
        rows = int(chance.integers(1, 4))
        tokens = chance.integers(0, 11, (rows, length))
        requests.append({"tokens": tokens})
        requests.append({"tokens": tokens, "mask": np.arange(length) < chance.integers(1, length + 1, (rows, 1))})
    answers, runs = ask(folder, requests)
    assert_as_alone(folder, requests, answers)
    assert runs < len(requests) / 4


@pytest.mark.parametrize("factor", [1e-3, 10.0, 300.0])
def test_images_beside_one_of_another_norm(exported: Exported, factor: float) -> None:
    folder = exported("vit", "onnx")
    images = np.random.default_rng(2).standard_normal((9, 1, 1, 8, 8)).astype(np.float32)
    images[4] *= factor
    requests = [{"images": image} for image in images]
    answers, runs = ask(folder, requests)
    assert_as_alone(folder, requests, answers)
    assert runs == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38], ids=["NaN", "Inf", "overflow"])
def test_images_beside_one_that_fails(exported: Exported, value: float) -> None:
    folder = exported("vit", "onnx")
    images = np.random.default_rng(3).standard_normal((9, 1, 1, 8, 8)).astype(np.float32)
    images[4] = value
    requests = [{"images": image} for image in images]
    answers, runs = ask(folder, requests)
    assert isinstance(answers[4], Refusal)
    assert answers[4].status == (422 if value == 1e38 else 400)
    assert runs == (2 if value == 1e38 else 1)  # NaN and Inf are found before anyone shares a batch with them
    del requests[4], answers[4]
    assert_as_alone(folder, requests, answers)


def test_a_sequence_without_a_real_token_fails_alone(exported: Exported) -> None:
    folder = exported("encoder", "onnx")
    requests = [{"tokens": np.full((1, n), 3), "mask": np.ones((1, n), bool)} for n in (4, 5, 6)]
    requests[1]["mask"] = np.zeros((1, 5), bool)
    answers, runs = ask(folder, requests)
    assert isinstance(answers[1], Refusal)
    assert "NaN or Inf" in str(answers[1])
    del requests[1], answers[1]
    assert_as_alone(folder, requests, answers)
    assert runs == 2  # the batch, which counts once also when part of it was run again, and the guilty one
