"""gRPC besides inference: probes, reflection, deadlines, streams of any length, and limits."""

from __future__ import annotations

import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from serving_process import ServerProcess
from small_models import feeds

grpcclient = pytest.importorskip("tritonclient.grpc")
Exported = Callable[[str, str], Path]
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
TOKEN = "correct-horse-battery"


@pytest.fixture
def channel(server: ServerProcess) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc) as opened:
        yield opened
    assert server.noise == []


def asking(model: str, rows: int = 1, **fields: Any) -> Any:
    message = pb.ModelInferRequest(model_name=model, **fields)
    for name, array in feeds(model, rows).items():
        message.inputs.add(name=name, datatype={"float32": "FP32"}[str(array.dtype)], shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    return message


def health(channel: Any, name: str = "", **options: Any) -> Any:
    return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name), **options).status


def code(call: Callable[[], Any]) -> Any:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return raised.value.code()


def test_probes_ask_for_the_server_and_for_each_model(channel: Any) -> None:
    assert health(channel) == SERVING
    assert health(channel, "inference.GRPCInferenceService") == SERVING
    assert health(channel, "vit") == SERVING
    assert code(lambda: health(channel, "no")) == grpc.StatusCode.NOT_FOUND


def test_health_follows_unloads_loads_and_the_end(exported: Exported, tmp_path: Path) -> None:
    for name in ("vit", "other"):
        shutil.copytree(exported("vit", "onnx"), tmp_path / name / "1")
    with ServerProcess("--repository", tmp_path) as server, grpc.insecure_channel(server.grpc) as channel:
        seen: queue.Queue[Any] = queue.Queue()
        watches = [
            health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=name))
            for name in ("", "vit", "later")
        ]
        for number, watch in enumerate(watches):
            threading.Thread(target=lambda n=number, w=watch: [seen.put((n, a.status)) for a in w]).start()

        def next_seen(count: int) -> set[tuple[int, Any]]:
            return {seen.get(timeout=10) for _ in range(count)}

        assert next_seen(3) == {(0, SERVING), (1, SERVING), (2, UNKNOWN)}
        client = grpcclient.InferenceServerClient(server.grpc)
        client.unload_model("vit")
        assert next_seen(1) == {(1, NOT_SERVING)}
        assert health(channel, "vit") == NOT_SERVING
        assert health(channel) == SERVING  # by the other model
        client.unload_model("other")
        assert next_seen(1) == {(0, NOT_SERVING)}
        assert health(channel) == NOT_SERVING
        client.load_model("vit")
        assert next_seen(2) == {(0, SERVING), (1, SERVING)}
        client.close()
        begin = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begin < 10  # those who watch do not hold the server
        assert next_seen(2) == {(0, NOT_SERVING), (1, NOT_SERVING)}


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_tools_can_ask_what_the_server_speaks(server: ServerProcess, version: str) -> None:
    class Rename(grpc.StreamStreamClientInterceptor):  # type: ignore[misc]
        """Asks for the version of reflection that newer tools ask for; the messages are the same."""

        def intercept_stream_stream(self, go: Any, details: Any, messages: Any) -> Any:
            return go(details._replace(method=details.method.replace("v1alpha", version)), messages)

    with grpc.intercept_channel(grpc.insecure_channel(server.grpc), Rename()) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert set(database.get_services()) == {
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
            "inference.GRPCInferenceService",
        }
        service = DescriptorPool(database).FindServiceByName("inference.GRPCInferenceService")
        assert "ModelInfer" in service.methods_by_name
        fields = service.methods_by_name["ModelInfer"].input_type.fields_by_name
        assert fields["raw_input_contents"].number == 7
        with pytest.raises(KeyError):
            database.FindFileByName("no.proto")


def test_the_token_guards_all_but_probes(exported: Exported) -> None:
    folder = exported("vit", "onnx")
    with (
        ServerProcess(folder, environment={"OSA_SERVE_TOKEN": TOKEN}) as server,
        grpc.insecure_channel(server.grpc) as channel,
    ):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        right = (("authorization", f"Bearer {TOKEN}"),)
        assert health(channel) == SERVING
        assert stub.ServerLive(pb.ServerLiveRequest()).live
        assert stub.ServerReady(pb.ServerReadyRequest()).ready
        assert health(channel, folder.name, metadata=right) == SERVING
        asked: list[Callable[[], Any]] = [
            lambda: health(channel, folder.name),
            lambda: next(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())),
            lambda: stub.ModelInfer(asking("vit")),
            lambda: next(stub.ModelStreamInfer(iter([asking("vit")]))),
            lambda: stub.ServerMetadata(pb.ServerMetadataRequest(), metadata=(("authorization", TOKEN),)),
            lambda: list(ProtoReflectionDescriptorDatabase(channel).get_services()),
        ]
        assert [code(ask) for ask in asked] == [grpc.StatusCode.UNAUTHENTICATED] * len(asked)
        assert stub.ServerMetadata(pb.ServerMetadataRequest(), metadata=right).name == "osa-runtime"


def test_two_thousand_requests_of_a_stream_without_waiting(server: ServerProcess) -> None:
    client = grpcclient.InferenceServerClient(server.grpc)
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    tensor = grpcclient.InferInput("images", [1, 1, 8, 8], "FP32")
    tensor.set_data_from_numpy(feeds("vit", 1)["images"])
    for number in range(2000):
        client.async_stream_infer("vit", [tensor], request_id=str(number))
    received = [answers.get(timeout=60) for _ in range(2000)]
    client.stop_stream()
    client.close()
    assert [error for _, error in received if error] == []
    assert [result.get_response().id for result, _ in received] == [str(number) for number in range(2000)]


def test_a_stream_may_carry_many_times_the_largest_message(channel: Any) -> None:
    """Twelve times the limit of 1 MB in one stream, and a refusal in between."""
    parts = [asking("vit", 8) for _ in range(40)]
    for part in parts[1:]:
        part.parameters["filler"].string_param = "x" * 60_000
    padded = pb.ModelInferRequest(model_name="vit", id="bad")
    padded.inputs.add(name="images", datatype="FP32", shape=[1000, 1, 8, 8])
    padded.raw_input_contents.append(np.zeros((1000, 1, 8, 8), np.float32).tobytes())
    messages = parts * 5 + [padded] + parts
    stream = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(messages))
    answers = list(stream)
    refused = [n for n, answer in enumerate(answers) if answer.error_message]
    assert (len(answers), refused) == (241, [200])
    assert answers[200].infer_response.id == "bad"
    assert "must be <= 8" in answers[200].error_message


def test_the_stream_of_a_server_that_stops_is_told(exported: Exported) -> None:
    folder = exported("vit", "onnx")
    with ServerProcess(folder) as server, grpc.insecure_channel(server.grpc) as channel:
        message = asking("vit")
        message.model_name = folder.name
        more = threading.Event()

        def messages() -> Iterator[Any]:
            yield message
            more.wait(30)

        stream = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(messages())
        assert not next(stream).error_message
        begin = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begin < 10  # an idle stream does not hold the server
        assert code(lambda: next(stream)) == grpc.StatusCode.UNAVAILABLE
        more.set()


def test_a_request_that_never_comes_is_given_up(exported: Exported) -> None:
    with ServerProcess(exported("vit", "onnx"), "--timeout", "0.3") as server:
        never = threading.Event()

        def nothing() -> Iterator[bytes]:
            never.wait(30)
            yield b""

        with grpc.insecure_channel(server.grpc) as channel:
            call = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
            assert code(lambda: call(nothing())) == grpc.StatusCode.DEADLINE_EXCEEDED
            assert health(channel) == SERVING
        never.set()


LIMITS: dict[str, tuple[Callable[[Any], Any], grpc.StatusCode]] = {
    "metadata": (
        lambda channel: health(channel, metadata=[(f"k{n}", "v") for n in range(120)]),
        grpc.StatusCode.INVALID_ARGUMENT,
    ),
    "large metadata": (
        lambda channel: health(channel, metadata=[("k", "v" * 70_000)]),
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    ),
    "control message": (lambda channel: health(channel, "x" * 70_000), grpc.StatusCode.RESOURCE_EXHAUSTED),
    "message": (
        lambda channel: channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"\0" * (2 << 20)),
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    ),
    "no message": (
        lambda channel: channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")(iter(())),
        grpc.StatusCode.INVALID_ARGUMENT,
    ),
    "nonsense": (
        lambda channel: channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"\xff" * 30),
        grpc.StatusCode.INVALID_ARGUMENT,
    ),
    "no such call": (lambda channel: channel.unary_unary("/no/such")(b""), grpc.StatusCode.UNIMPLEMENTED),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_what_is_beyond_the_limits_has_its_code(channel: Any, limit: str) -> None:
    call, expected = LIMITS[limit]
    assert code(lambda: call(channel)) == expected
    assert health(channel) == SERVING


def test_a_refusal_says_when_to_come_back(exported: Exported) -> None:
    folder = exported("vit", "onnx")
    options = ["--max-queue", "1", "--max-delay-ms", "1000"]
    with ServerProcess(folder, *options) as server, grpc.insecure_channel(server.grpc) as channel:
        message = asking("vit")
        message.model_name = folder.name
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        calls = [stub.ModelInfer.future(message) for _ in range(2)]
        refused = [call for call in calls if call.exception(timeout=30) is not None]
        assert [call.code() for call in refused] == [grpc.StatusCode.UNAVAILABLE]
        assert ("retry-after", "1") in [tuple(entry) for entry in refused[0].trailing_metadata()]
