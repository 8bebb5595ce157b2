"""tritonclient, which nobody here wrote, finds the protocol as Triton speaks it: over HTTP and over gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osa_runtime import load
from serving_process import ServerProcess
from small_models import feeds

grpcclient = pytest.importorskip("tritonclient.grpc")
httpclient = pytest.importorskip("tritonclient.http")
from tritonclient.utils import InferenceServerException, np_to_triton_dtype  # noqa: E402 - after the skip

Exported = Callable[[str, str], Path]


class Client:
    """Both clients differ in little more than the form of what they return."""

    def __init__(self, module: Any, address: str) -> None:
        self.module = module
        self.name = module.__name__.rpartition(".")[2]
        self.calls = module.InferenceServerClient(address)

    def inputs(self, arrays: dict[str, Any], **options: Any) -> list[Any]:
        result = []
        for name, array in arrays.items():
            tensor = self.module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array, **options)
            result.append(tensor)
        return result

    def plain(self, message: Any) -> Any:
        """The result of the call as the plain objects of REST."""
        if self.name == "http":
            return message
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(message, preserving_proto_field_name=True)


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Client]:
    module = httpclient if request.param == "http" else grpcclient
    opened = Client(module, getattr(server, request.param))
    yield opened
    opened.calls.close()


def expected(exported: Exported, model: str, arrays: dict[str, Any]) -> Any:
    return load(exported(model, "onnx"), threads=1).run(arrays)["logits"]


def test_server_is_live_ready_and_known(client: Client) -> None:
    assert client.calls.is_server_live()
    assert client.calls.is_server_ready()
    metadata = client.plain(client.calls.get_server_metadata())
    assert metadata["name"] == "osa-runtime"
    assert {"binary_tensor_data", "statistics", "model_repository"} <= set(metadata["extensions"])


@pytest.mark.parametrize(
    ("model", "version", "ready"), [("vit", "", True), ("vit", "1", True), ("vit", "2", False), ("no", "", False)]
)
def test_models_are_ready_or_not(client: Client, model: str, version: str, ready: bool) -> None:
    assert client.calls.is_model_ready(model, version) is ready


def test_metadata_names_versions_types_and_axes(client: Client) -> None:
    metadata = client.plain(client.calls.get_model_metadata("vit"))
    assert metadata["versions"] == ["1", "3"]
    assert metadata["platform"] == "onnxruntime_onnx"
    assert [int(n) for n in metadata["inputs"][0]["shape"]] == [-1, 1, 8, 8]
    assert metadata["inputs"][0]["datatype"] == "FP32"
    assert metadata["outputs"][0]["name"] == "logits"


def test_config_says_how_requests_are_batched(client: Client) -> None:
    answer = client.plain(client.calls.get_model_config("encoder"))
    config = answer if client.name == "http" else answer["config"]
    assert config["max_batch_size"] == 8
    assert {tensor["name"]: tensor["data_type"] for tensor in config["input"]} == {
        "tokens": "TYPE_INT64",
        "mask": "TYPE_BOOL",
    }
    assert [tensor["name"] for tensor in config["input"] if tensor.get("optional")] == ["mask"]
    assert "dynamic_batching" in config


@pytest.mark.parametrize("model", ["vit", "encoder"])
def test_inference_gives_what_the_session_gives(client: Client, exported: Exported, model: str) -> None:
    arrays = feeds(model)
    result = client.calls.infer(model, client.inputs(arrays), request_id="seven")
    np.testing.assert_allclose(result.as_numpy("logits"), expected(exported, model, arrays), rtol=1e-5, atol=1e-6)
    answer = client.plain(result.get_response())
    assert answer["id"] == "seven"
    assert (answer["model_name"], answer["model_version"]) == (model, "3" if model == "vit" else "1")


def test_named_outputs_and_versions(client: Client) -> None:
    arrays = feeds("vit")
    wanted = [client.module.InferRequestedOutput("logits")]
    first = client.calls.infer("vit", client.inputs(arrays), model_version="1", outputs=wanted)
    assert client.plain(first.get_response())["model_version"] == "1"
    np.testing.assert_array_equal(
        first.as_numpy("logits"), client.calls.infer("vit", client.inputs(arrays)).as_numpy("logits")
    )


def test_classification_gives_the_likeliest(client: Client, exported: Exported) -> None:
    arrays = feeds("vit")
    wanted = [client.module.InferRequestedOutput("logits", class_count=3)]
    answer = client.calls.infer("vit", client.inputs(arrays), outputs=wanted).as_numpy("logits")
    logits = expected(exported, "vit", arrays)
    assert answer.shape == (3, 3)
    best = [int(row[0].decode().split(":")[1]) for row in answer]
    assert best == list(logits.argmax(1))


def test_a_missing_mask_means_that_all_tokens_are_real(client: Client, exported: Exported) -> None:
    tokens = {"tokens": feeds("encoder")["tokens"]}
    answer = client.calls.infer("encoder", client.inputs(tokens)).as_numpy("logits")
    full = tokens | {"mask": np.ones(tokens["tokens"].shape, bool)}
    np.testing.assert_allclose(answer, expected(exported, "encoder", full), rtol=1e-5, atol=1e-6)


def test_parameters_are_taken(client: Client) -> None:
    arrays = feeds("vit")
    assert client.calls.infer("vit", client.inputs(arrays), parameters={"mine": "x", "n": 3}, timeout=10_000_000)
    empty = feeds("encoder") | {"mask": np.zeros((3, 5), bool)}
    with pytest.raises(InferenceServerException, match="Output logits holds 9 NaN or Inf"):
        client.calls.infer("encoder", client.inputs(empty))
    allowed = client.calls.infer("encoder", client.inputs(empty), parameters={"allow_nonfinite": True})
    assert np.isnan(allowed.as_numpy("logits")).all()


WRONG: dict[str, tuple[str, dict[str, Any], dict[str, Any], str, str]] = {
    "model": ("no", feeds("vit"), {}, "unknown model: 'no'", "404 NOT_FOUND"),
    "version": ("vit", feeds("vit"), {"model_version": "2"}, "version 2 is not found", "404 NOT_FOUND"),
    "version text": ("vit", feeds("vit"), {"model_version": "x"}, "version string 'x'", "400 INVALID_ARGUMENT"),
    "input name": ("vit", {"image": feeds("vit")["images"]}, {}, "Unexpected input 'image'", "400 INVALID_ARGUMENT"),
    "dtype": ("vit", {"images": np.zeros((1, 1, 8, 8))}, {}, "expected float32", "400 INVALID_ARGUMENT"),
    "rank": ("vit", {"images": np.zeros((1, 8, 8), np.float32)}, {}, "expected rank 4", "400 INVALID_ARGUMENT"),
    "size": ("vit", {"images": np.zeros((1, 1, 8, 9), np.float32)}, {}, "expected 8", "400 INVALID_ARGUMENT"),
    "rows": ("vit", {"images": np.zeros((9, 1, 8, 8), np.float32)}, {}, "must be <= 8", "400 INVALID_ARGUMENT"),
    "no rows": ("vit", {"images": np.zeros((0, 1, 8, 8), np.float32)}, {}, "at least 1", "400 INVALID_ARGUMENT"),
    "NaN": ("vit", {"images": np.full((1, 1, 8, 8), np.nan, np.float32)}, {}, "NaN or Inf", "400 INVALID_ARGUMENT"),
    "missing": ("encoder", {"mask": np.ones((1, 4), bool)}, {}, "Missing input tokens", "400 INVALID_ARGUMENT"),
    "timeout": ("vit", feeds("vit"), {"timeout": -1}, "microseconds", "400 INVALID_ARGUMENT"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(client: Client, case: str) -> None:
    model, arrays, options, message, status = WRONG[case]
    with pytest.raises(InferenceServerException) as raised:
        client.calls.infer(model, client.inputs(arrays), **options)
    assert message in raised.value.message()
    assert raised.value.status() in (status.split()[0], f"StatusCode.{status.split()[1]}")


def test_an_unknown_output_is_refused(client: Client) -> None:
    with pytest.raises(InferenceServerException, match="unexpected inference output 'no'"):
        client.calls.infer("vit", client.inputs(feeds("vit")), outputs=[client.module.InferRequestedOutput("no")])


def test_statistics_count(client: Client) -> None:
    def count() -> int:
        answer = client.plain(client.calls.get_inference_statistics("vit", "1"))
        return int(answer["model_stats"][0]["inference_stats"]["success"].get("count", 0))

    before = count()
    client.calls.infer("vit", client.inputs(feeds("vit")), model_version="1")
    assert count() == before + 1
    every = client.plain(client.calls.get_inference_statistics())["model_stats"]
    assert [(m["name"], m["version"]) for m in every] == [("encoder", "1"), ("vit", "1"), ("vit", "3")]


def test_repository_index(client: Client) -> None:
    answer = client.plain(client.calls.get_model_repository_index())
    rows = answer if client.name == "http" else answer["models"]
    assert {(row["name"], row["version"], row["state"]) for row in rows} == {
        ("encoder", "1", "READY"),
        ("vit", "1", "READY"),
        ("vit", "3", "READY"),
    }


def test_loading_what_is_loaded_changes_nothing(client: Client) -> None:
    client.calls.load_model("vit")
    assert client.calls.is_model_ready("vit", "3")
    with pytest.raises(InferenceServerException, match="no such"):
        client.calls.load_model("../vit")
    with pytest.raises(InferenceServerException, match="not supported"):
        client.calls.load_model("vit", config='{"max_batch_size": 1}')
    with pytest.raises(InferenceServerException, match="is not loaded"):
        client.calls.unload_model("no")


def test_calls_that_this_server_does_not_have_fail_cleanly(client: Client) -> None:
    for call in (client.calls.get_system_shared_memory_status, client.calls.get_trace_settings):
        with pytest.raises(InferenceServerException) as raised:
            call()
        assert raised.value.status() in ("501", "StatusCode.UNIMPLEMENTED")


@pytest.mark.parametrize("request_algorithm", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_algorithm", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_http_bodies_are_compressed_and_binary_or_not(
    server: ServerProcess, request_algorithm: str | None, response_algorithm: str | None, binary: bool
) -> None:
    client = Client(httpclient, server.http)
    arrays = feeds("vit", 8)
    result = client.calls.infer(
        "vit",
        client.inputs(arrays, binary_data=binary),
        outputs=[httpclient.InferRequestedOutput("logits", binary_data=binary)],
        request_compression_algorithm=request_algorithm,
        response_compression_algorithm=response_algorithm,
    )
    plain = client.calls.infer("vit", client.inputs(arrays))
    np.testing.assert_allclose(result.as_numpy("logits"), plain.as_numpy("logits"), rtol=1e-6)
    client.calls.close()


def test_http_async_calls_share_the_connection_pool(server: ServerProcess) -> None:
    client = Client(httpclient, server.http)
    calls = [client.calls.async_infer("vit", client.inputs(feeds("vit", 1 + i % 3))) for i in range(20)]
    assert [call.get_result().as_numpy("logits").shape for call in calls] == [(1 + i % 3, 10) for i in range(20)]
    client.calls.close()


def test_grpc_stream_answers_in_order_and_survives_errors(server: ServerProcess) -> None:
    import queue

    client = Client(grpcclient, server.grpc)
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.calls.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(12):
        arrays = feeds("vit", 1) if number != 5 else {"images": np.zeros((1, 1, 8, 9), np.float32)}
        client.calls.async_stream_infer("vit", client.inputs(arrays), request_id=str(number))
    received = [answers.get(timeout=30) for _ in range(12)]
    client.calls.stop_stream()
    assert [n for n, (_, error) in enumerate(received) if error] == [5]
    assert [result.get_response().id for result, error in received if not error] == [
        str(n) for n in range(12) if n != 5
    ]
    client.calls.close()


def test_grpc_takes_typed_contents(server: ServerProcess, exported: Exported) -> None:
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    grpc = pytest.importorskip("grpc")
    arrays = feeds("encoder")
    message = service_pb2.ModelInferRequest(model_name="encoder")
    tokens = message.inputs.add(name="tokens", datatype="INT64", shape=[3, 5])
    tokens.contents.int64_contents.extend(arrays["tokens"].ravel().tolist())
    mask = message.inputs.add(name="mask", datatype="BOOL", shape=[3, 5])
    mask.contents.bool_contents.extend(arrays["mask"].ravel().tolist())
    with grpc.insecure_channel(server.grpc) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message)
    logits = np.frombuffer(answer.raw_output_contents[0], "<f4").reshape(3, 3)
    np.testing.assert_allclose(logits, expected(exported, "encoder", arrays), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_grpc_messages_may_be_compressed(server: ServerProcess, algorithm: str) -> None:
    client = Client(grpcclient, server.grpc)
    arrays = feeds("vit", 8)
    packed = client.calls.infer("vit", client.inputs(arrays), compression_algorithm=algorithm)
    plain = client.calls.infer("vit", client.inputs(arrays))
    np.testing.assert_allclose(packed.as_numpy("logits"), plain.as_numpy("logits"), rtol=1e-5, atol=1e-6)
    client.calls.close()


@pytest.mark.parametrize(("rows", "message"), [(3000, "bytes, expected at most"), (9000, "larger than max")])
def test_grpc_messages_have_limits(server: ServerProcess, rows: int, message: str) -> None:
    client = Client(grpcclient, server.grpc)
    for _ in range(3):  # the connection stays usable
        with pytest.raises(InferenceServerException, match=message) as raised:
            client.calls.infer("vit", client.inputs({"images": np.zeros((rows, 1, 8, 8), np.float32)}))
        assert raised.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        client.calls.infer("vit", client.inputs(feeds("vit")))
    client.calls.close()


def test_grpc_messages_larger_than_the_windows(server: ServerProcess) -> None:
    """Half a megabyte of ids is many times the default window, and fails only in the model's own check."""
    client = Client(grpcclient, server.grpc)
    with pytest.raises(InferenceServerException, match="expected at most 64"):
        client.calls.infer("encoder", client.inputs({"tokens": np.zeros((8, 8000), np.int64)}))
    client.calls.close()


def test_a_second_grpc_client_and_asyncio(server: ServerProcess) -> None:
    import asyncio

    aio = pytest.importorskip("tritonclient.grpc.aio")

    async def main() -> list[Any]:
        async with aio.InferenceServerClient(server.grpc) as calls:
            tensors = Client(grpcclient, server.grpc).inputs(feeds("vit", 2))
            return list(await asyncio.gather(*(calls.infer("vit", tensors) for _ in range(40))))

    assert [answer.as_numpy("logits").shape for answer in asyncio.run(main())] == [(2, 10)] * 40
