"""A real tritonserver on the repositories that we write, asked by tritonclient over HTTP and gRPC."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import triton_process
from osa_runtime import load
from osa_runtime.packaging.triton_config import TritonSettings
from osa_runtime.packaging.triton_repository import package_triton
from small_models import feeds
from triton_process import ServerUnavailable, TritonProcess, triton_home

httpclient = pytest.importorskip("tritonclient.http")
grpcclient = pytest.importorskip("tritonclient.grpc")
from tritonclient.utils import InferenceServerException, np_to_triton_dtype  # noqa: E402 - after the skip

pytestmark = pytest.mark.slow

Artifacts = Callable[[str], Path]
Arrays = dict[str, Any]

MODELS = ("vit", "encoder", "fp16", "static", "features", "two-outputs", "total")
FULL = 8  # rows of the models that wait for a full batch
LONG = 30_000_000  # microseconds; they never have to wait so long, since the tests fill the batch
PATIENT = TritonSettings(backend="python", max_batch=FULL, max_delay_us=LONG, warm_up=False)


@pytest.fixture(scope="module")
def installed() -> Path:
    try:
        return triton_home()
    except ServerUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def repositories(artifacts: Artifacts, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    home = tmp_path_factory.mktemp("triton")
    for name in MODELS:
        package_triton([artifacts(name)], home / name, TritonSettings(backend="python"), name=name)
    for name in ("vit", "encoder"):
        package_triton([artifacts(name)], home / f"patient-{name}", PATIENT, name=f"patient-{name}")
    return sorted(home.iterdir())


@pytest.fixture(scope="module")
def server(installed: Path, repositories: list[Path]) -> Iterator[TritonProcess]:
    with TritonProcess(*repositories, flags=("--log-verbose=1",)) as running:
        yield running


class Client:
    """Both clients differ in little more than the form of what they return."""

    def __init__(self, kind: str, server: TritonProcess) -> None:
        self._again = (kind, server)
        self.module = httpclient if kind == "http" else grpcclient
        self.calls = self.module.InferenceServerClient(getattr(server, kind))
        self.as_json = {} if kind == "http" else {"as_json": True}

    def infer(self, model: str, arrays: Arrays, **options: Any) -> Any:
        tensors = []
        for name, array in arrays.items():
            tensor = self.module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        return self.calls.infer(model, tensors, **options)

    def infer_together(self, model: str, requests: list[Arrays]) -> list[Any]:
        """The answer to each request, or the error that it raised."""

        def ask(arrays: Arrays) -> Any:
            client = Client(*self._again)  # the HTTP client belongs to one thread
            try:
                return client.infer(model, arrays).as_numpy("logits")
            except InferenceServerException as error:
                return error
            finally:
                client.calls.close()

        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(ask, requests))

    def counts(self, model: str) -> tuple[int, int]:
        """Rows that were answered, and runs that it took."""
        answer = self.calls.get_inference_statistics(model, **self.as_json)["model_stats"][0]
        return int(answer.get("inference_count", 0)), int(answer.get("execution_count", 0))


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: TritonProcess) -> Iterator[Client]:
    opened = Client(request.param, server)
    yield opened
    opened.calls.close()


def inputs_of(model: str) -> Arrays:
    generator = np.random.default_rng(1)
    if model in ("vit", "encoder"):
        return feeds(model)
    if model in ("fp16", "static"):
        images = generator.standard_normal((3 if model == "fp16" else 1, 1, 8, 8))
        return {"images": images.astype(np.float16 if model == "fp16" else np.float32)}
    mask = np.arange(6) < np.array([[6], [1], [4]])
    if model == "features":
        return {"tokens": generator.standard_normal((3, 6, 3)).astype(np.float32), "mask": mask}
    x = generator.standard_normal((3, 6, 8)).astype(np.float32)
    return {"x": x, "real": mask} if model == "two-outputs" else {"x": x}


def expected(artifacts: Artifacts, model: str, arrays: Arrays) -> Arrays:
    with load(artifacts(model), threads=1) as session:
        return session.run(arrays)


def check_close(actual: Any, wanted: Any) -> None:
    loose = wanted.dtype == np.float16
    np.testing.assert_allclose(actual, wanted, rtol=2e-2 if loose else 1e-5, atol=2e-3 if loose else 1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_answers_are_those_of_the_session(client: Client, artifacts: Artifacts, model: str) -> None:
    arrays = inputs_of(model)
    answer = client.infer(model, arrays)
    for name, wanted in expected(artifacts, model, arrays).items():
        actual = answer.as_numpy(name)
        assert actual.dtype == wanted.dtype
        if (model, name) == ("two-outputs", "total"):
            assert actual.shape == (3, 1)  # one number per row is [1] to clients
            actual = actual[:, 0]
        check_close(actual, wanted)


def test_server_and_models_are_ready(client: Client) -> None:
    assert client.calls.is_server_live()
    assert client.calls.is_server_ready()
    assert all(client.calls.is_model_ready(model, "1") for model in MODELS)
    assert not client.calls.is_model_ready("vit", "2")


def test_metadata_and_config_are_what_was_packed(client: Client) -> None:
    metadata = client.calls.get_model_metadata("encoder", **client.as_json)
    shapes = {tensor["name"]: [int(size) for size in tensor["shape"]] for tensor in metadata["inputs"]}
    assert shapes == {"tokens": [-1, -1], "mask": [-1, -1]}
    assert {tensor["name"]: tensor["datatype"] for tensor in metadata["inputs"]} == {"tokens": "INT64", "mask": "BOOL"}
    answer = client.calls.get_model_config("encoder", **client.as_json)
    config = answer.get("config", answer)
    assert (config["backend"], config["max_batch_size"]) == ("python", 32)
    assert {tensor["name"] for tensor in config["input"] if tensor.get("optional")} == {"mask"}
    assert "dynamic_batching" in config
    static = client.calls.get_model_metadata("static", **client.as_json)
    assert [int(size) for size in static["inputs"][0]["shape"]] == [1, 1, 8, 8]


def test_a_missing_mask_means_that_all_tokens_are_real(client: Client, artifacts: Artifacts) -> None:
    tokens = {"tokens": feeds("encoder")["tokens"]}
    full = tokens | {"mask": np.ones(tokens["tokens"].shape, bool)}
    check_close(client.infer("encoder", tokens).as_numpy("logits"), expected(artifacts, "encoder", full)["logits"])


def test_one_output_may_be_asked_for(client: Client, artifacts: Artifacts) -> None:
    arrays = inputs_of("two-outputs")
    answer = client.infer("two-outputs", arrays, outputs=[client.module.InferRequestedOutput("total")])
    assert answer.as_numpy("mixed") is None
    check_close(answer.as_numpy("total")[:, 0], expected(artifacts, "two-outputs", arrays)["total"])


NAN = np.full((1, 1, 8, 8), np.nan, np.float32)
WRONG: dict[str, tuple[str, Arrays, str]] = {
    "name": ("vit", {"pictures": feeds("vit")["images"]}, "pictures"),
    "dtype": ("vit", {"images": np.zeros((1, 1, 8, 8))}, "FP64"),
    "size": ("vit", {"images": np.zeros((1, 1, 8, 9), np.float32)}, "shape"),
    "too many rows": ("vit", {"images": np.zeros((33, 1, 8, 8), np.float32)}, "batch-size must be <= 32"),
    "not finite": ("vit", {"images": NAN}, "Input images holds 64 NaN or Inf"),
    "missing input": ("two-outputs", {"x": np.zeros((1, 6, 8), np.float32)}, "real"),
    "ids beyond the table": ("encoder", {"tokens": np.full((1, 3), 11)}, "holds values from 11 to 11"),
    "no real token": (
        "encoder",
        {"tokens": np.zeros((1, 3), np.int64), "mask": np.zeros((1, 3), bool)},
        "Output logits holds 3 NaN or Inf",
    ),
    "too long": ("encoder", {"tokens": np.zeros((1, 65), np.int64)}, "expected at most 64"),
    "no tokens": ("encoder", {"tokens": np.zeros((1, 0), np.int64)}, "expected at least 1"),
    "lengths that differ": (
        "encoder",
        {"tokens": np.zeros((1, 3), np.int64), "mask": np.ones((1, 4), bool)},
        "expected equal sizes",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_inputs_are_errors_and_do_no_harm(client: Client, case: str) -> None:
    model, arrays, message = WRONG[case]
    with pytest.raises(InferenceServerException) as raised:
        client.infer(model, arrays)
    assert message in str(raised.value)
    assert "Traceback" not in str(raised.value)
    client.infer(model, inputs_of(model))


def test_inputs_that_have_no_answer_are_errors_of_the_caller(client: Client) -> None:
    statuses = []
    for case in ("ids beyond the table", "no real token"):
        model, arrays, _ = WRONG[case]
        with pytest.raises(InferenceServerException) as raised:
            client.infer(model, arrays)
        statuses.append(raised.value.status())
    assert statuses in (["400"] * 2, ["StatusCode.INVALID_ARGUMENT"] * 2)


def test_requests_at_the_same_time_share_one_run(client: Client, artifacts: Artifacts) -> None:
    rows = np.random.default_rng(2).standard_normal((FULL, 1, 8, 8)).astype(np.float32)
    before = client.counts("patient-vit")
    answers = client.infer_together("patient-vit", [{"images": row[None]} for row in rows])
    after = counts_beyond(client, "patient-vit", before)
    assert (after[0] - before[0], after[1] - before[1]) == (FULL, 1)
    check_close(np.concatenate(answers), expected(artifacts, "vit", {"images": rows})["logits"])


def sequences(generator: np.random.Generator) -> list[Arrays]:
    """Of different lengths, all with a mask: Triton joins no request without an input to one that has it."""
    tokens = [generator.integers(0, 11, (1, 2 + 3 * n)) for n in range(FULL)]
    return [{"tokens": ids, "mask": np.arange(ids.size)[None] < 4} for ids in tokens]


def counts_beyond(client: Client, model: str, before: tuple[int, int]) -> tuple[int, int]:
    """Triton counts a request after it has sent the answer, so the first look may come too early."""
    deadline = time.monotonic() + 10
    while (found := client.counts(model))[0] < before[0] + FULL and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def test_sequences_of_different_length_share_one_run(client: Client, artifacts: Artifacts) -> None:
    requests = sequences(np.random.default_rng(3))
    before = client.counts("patient-encoder")
    answers = client.infer_together("patient-encoder", requests)
    after = counts_beyond(client, "patient-encoder", before)
    assert (after[0] - before[0], after[1] - before[1]) == (FULL, 1)
    for answer, request in zip(answers, requests, strict=True):
        check_close(answer, expected(artifacts, "encoder", request)["logits"])


def test_only_the_guilty_request_of_a_batch_fails(client: Client, artifacts: Artifacts) -> None:
    requests = sequences(np.random.default_rng(4))
    requests[2]["mask"] = np.zeros_like(requests[2]["mask"])
    requests[5]["tokens"] = np.full_like(requests[5]["tokens"], -1)
    answers = client.infer_together("patient-encoder", requests)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, Exception)] == [2, 5]
    assert "NaN or Inf" in str(answers[2])
    assert "holds values from -1 to -1" in str(answers[5])
    for number in (0, 1, 3, 4, 6, 7):
        check_close(answers[number], expected(artifacts, "encoder", requests[number])["logits"])


def test_models_are_warm_before_they_are_ready(server: TritonProcess) -> None:
    log = server.log()
    for model in MODELS:
        samples = ["one row", "full batch"] if model not in ("static", "total") else ["one row"]
        places = [log.index(f"instance {model}_0_0 is running warmup sample '{sample}'") for sample in samples]
        assert places == sorted(places)
        assert places[-1] < log.index(f"successfully loaded '{model}'")


def test_a_server_that_cannot_be_installed_is_a_reason_to_skip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(triton_process, "HOME", tmp_path / "venv")
    monkeypatch.setattr(triton_process, "STAMP", tmp_path / "venv" / "installed")
    monkeypatch.setattr(triton_process, "PINS", ("no-such-package-of-osa==1",))
    with pytest.raises(ServerUnavailable, match="no-such-package-of-osa==1 cannot be installed here: ERROR"):
        triton_home()
    assert not (tmp_path / "venv" / "installed").exists()


def test_sigterm_ends_the_server_and_its_models(installed: Path, repositories: list[Path]) -> None:
    vit = next(path for path in repositories if path.name == "vit")
    server = TritonProcess(vit)
    client = Client("http", server)
    client.infer("vit", feeds("vit"))
    client.calls.close()
    children = server.children()
    assert children
    with server:
        assert server.stop() == 0
    assert not any(os.path.exists(f"/proc/{pid}") for pid in children)


def test_a_model_that_was_changed_does_not_start(installed: Path, artifacts: Artifacts, tmp_path: Path) -> None:
    package_triton([artifacts("vit")], tmp_path / "repo", TritonSettings(backend="python"), name="vit")
    with (tmp_path / "repo" / "vit" / "1" / "model.onnx").open("ab") as stream:
        stream.write(b"\0")
    with TritonProcess(tmp_path / "repo", ready=False) as server:
        assert server.process.wait(120) != 0
        assert "its hash differs from the manifest's" in server.log()


def test_several_instances_and_a_later_version(installed: Path, artifacts: Artifacts, tmp_path: Path) -> None:
    settings = TritonSettings(backend="python", instances=2, version=3, threads=1)
    package_triton([artifacts("vit")], tmp_path / "repo", settings, name="vit")
    with TritonProcess(tmp_path / "repo", flags=("--log-verbose=1", "--disable-auto-complete-config")) as server:
        client = Client("http", server)
        assert client.infer("vit", feeds("vit")).get_response()["model_version"] == "3"
        client.calls.close()
        assert "instance vit_0_1 is running warmup sample" in server.log()
        assert len(server.children()) == 2
