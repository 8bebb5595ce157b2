"""The class that runs inside Triton, with stand-ins for what Triton passes to it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from osa_runtime import load
from osa_runtime.packaging.triton_config import TritonSettings
from osa_runtime.packaging.triton_model import TritonPythonModel, _threads
from osa_runtime.packaging.triton_repository import package_triton
from osa_runtime.runtime import onnx_session
from osa_runtime.runtime import session as session_module
from small_models import feeds

Artifacts = Callable[[str], Path]


class Tensor:
    def __init__(self, name: str, array: Any) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._array


class TritonError:
    INVALID_ARG, INTERNAL = "invalid", "internal"

    def __init__(self, text: str, code: str) -> None:
        self.text, self.code = text, code


class InferenceResponse:
    def __init__(self, output_tensors: Any = (), error: TritonError | None = None) -> None:
        self.outputs = {tensor.name(): tensor.as_numpy() for tensor in output_tensors}
        self.error = error


class TritonModelException(Exception):
    pass


class Request:
    def __init__(self, arrays: dict[str, Any], outputs: tuple[str, ...] = ("logits",)) -> None:
        self._arrays, self._outputs = arrays, outputs

    def inputs(self) -> list[Tensor]:
        return [Tensor(name, array) for name, array in self._arrays.items()]

    def requested_output_names(self) -> tuple[str, ...]:
        return self._outputs


@pytest.fixture(autouse=True)
def triton_utilities(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("triton_python_backend_utils")
    for part in (Tensor, TritonError, InferenceResponse, TritonModelException):
        setattr(module, part.__name__, part)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", module)


@pytest.fixture
def started(artifacts: Artifacts, tmp_path: Path) -> Callable[[str], TritonPythonModel]:
    def start(name: str, kind: str = "CPU") -> TritonPythonModel:
        package_triton([artifacts(name)], tmp_path / name, TritonSettings(backend="python"), name=name)
        model = TritonPythonModel()
        model.initialize(arguments(tmp_path / name / name, kind))
        return model

    return start


def arguments(folder: Path, kind: str = "CPU") -> dict[str, str]:
    return {
        "model_config": json.dumps({"parameters": {"threads": {"string_value": "1"}}}),
        "model_instance_kind": kind,
        "model_instance_device_id": "0",
        "model_repository": str(folder),
        "model_version": "1",
    }


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shape of the first input of every run."""
    seen: list[tuple[int, ...]] = []
    original = session_module.Session.run

    def run(self: Any, arrays: Any, **options: Any) -> Any:
        seen.append(next(iter(arrays.values())).shape)
        return original(self, arrays, **options)

    monkeypatch.setattr(session_module.Session, "run", run)
    return seen


def test_requests_that_fit_share_a_run_and_others_do_not(
    started: Callable[[str], TritonPythonModel], runs: list[tuple[int, ...]], artifacts: Artifacts
) -> None:
    model = started("two-outputs")  # its mask has another name, so only equal lengths may share a run
    generator = np.random.default_rng(0)
    sizes = [(1, 5), (2, 9), (3, 5), (1, 9)]
    requests = [
        {"x": generator.standard_normal((*size, 8)).astype(np.float32), "real": np.ones(size, bool)} for size in sizes
    ]
    runs.clear()
    responses = model.execute([Request(arrays, ("mixed", "total")) for arrays in requests])
    assert runs == [(4, 5, 8), (3, 9, 8)]
    session = load(artifacts("two-outputs"), threads=1)
    for arrays, response in zip(requests, responses, strict=True):
        for name, wanted in session.run(arrays).items():
            np.testing.assert_allclose(response.outputs[name], wanted, rtol=1e-5, atol=1e-6)


def test_a_model_that_cannot_batch_runs_each_request(
    started: Callable[[str], TritonPythonModel], runs: list[tuple[int, ...]]
) -> None:
    model = started("static")
    runs.clear()
    image = {"images": np.ones((1, 1, 8, 8), np.float32)}
    responses = model.execute([Request(image), Request(image)])
    assert runs == [(1, 1, 8, 8)] * 2
    assert all(response.error is None for response in responses)


def test_every_request_gets_its_own_answer_or_error(started: Callable[[str], TritonPythonModel]) -> None:
    good = feeds("encoder")
    wrong = good | {"tokens": good["tokens"] + 100}
    empty = good | {"mask": np.zeros_like(good["mask"])}
    broken = Request(good)
    broken.inputs = lambda: 1 / 0  # type: ignore[assignment,return-value]
    model = started("encoder")
    responses = model.execute([Request(wrong), Request(good), Request(empty), broken, Request(good, ())])
    assert [response.error and response.error.code for response in responses] == [
        "invalid",
        None,
        "invalid",
        "internal",
        None,
    ]
    assert "holds values from 10" in responses[0].error.text
    assert "NaN or Inf" in responses[2].error.text
    assert responses[3].error.text == "ZeroDivisionError: division by zero"
    assert responses[1].outputs["logits"].shape == (3, 3)
    assert np.isfinite(responses[1].outputs["logits"]).all()
    assert responses[4].outputs == {}


def test_values_that_are_not_finite_disturb_nobody_else(started: Callable[[str], TritonPythonModel]) -> None:
    good = feeds("vit", 1)
    model = started("vit")
    (alone,) = model.execute([Request(good)])
    for value in (np.nan, np.inf, np.float32(3e38)):  # the last is finite, and what the model makes of it is not
        bad = {"images": np.full_like(good["images"], value)}
        first, broken, last = model.execute([Request(good), Request(bad), Request(good)])
        assert broken.error.code == "invalid"
        assert re.search("NaN|Inf", broken.error.text)
        for answer in (first, last):
            assert answer.error is None
            np.testing.assert_allclose(answer.outputs["logits"], alone.outputs["logits"], rtol=1e-5, atol=1e-6)


def test_a_closed_model_answers_with_errors(started: Callable[[str], TritonPythonModel]) -> None:
    model = started("vit")
    model.finalize()
    (response,) = model.execute([Request(feeds("vit"))])
    assert "is closed" in response.error.text


def test_a_device_that_is_not_there_is_said(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_session, "onnx_cuda_problem", lambda: "there is no driver.")
    with pytest.raises(TritonModelException, match="The model cannot run on cuda:0: there is no driver"):
        started("vit", "GPU")


def test_a_missing_version_is_said(tmp_path: Path) -> None:
    with pytest.raises(TritonModelException, match="does not exist"):
        TritonPythonModel().initialize(arguments(tmp_path))


@pytest.mark.parametrize(
    ("config", "cores", "expected"),
    [
        ({}, 8, 7),
        ({"instance_group": [{"count": 2}]}, 8, 3),
        ({"instance_group": [{"count": 2}, {"count": 2}]}, 4, 1),
        ({}, 1, 1),
        ({"parameters": {"threads": {"string_value": "5"}}, "instance_group": [{"count": 9}]}, 2, 5),
    ],
    ids=["all but one", "shared by two", "never none", "one core", "chosen"],
)
def test_threads_leave_a_core_to_the_server(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], cores: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert _threads(config) == expected
