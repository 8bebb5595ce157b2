"""gRPC in a replica: every call of the protocol has a method that Ray can find, and refusals carry their code."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from osa_runtime.packaging.ray_application import SERVICER
from osa_runtime.serving.settings import Limits, ServerSettings
from osa_runtime.serving_ray import grpc_stubs
from osa_runtime.serving_ray.app import METHODS, Replica
from osa_runtime.serving_ray.settings import RaySettings


class Context:
    """The object that Ray passes as ``grpc_context``."""

    def __init__(self, **metadata: str) -> None:
        self._metadata = list(metadata.items())
        self.code: grpc.StatusCode | None = None
        self.details = ""

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return self._metadata

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details


def ask(name: str, message: Any, context: Context, settings: RaySettings) -> Any:
    async def run() -> Any:
        replica = Replica.__new__(Replica)
        await Replica.__init__(replica, settings)  # as Ray does
        try:
            await replica.check_health()
            return await getattr(replica, name)(message, context)
        finally:
            await replica._engine.close()

    return asyncio.run(run())


@pytest.fixture
def artifact(exported: Any) -> Path:
    return exported("vit", "onnx")


def test_every_call_of_the_protocol_has_a_method() -> None:
    assert [name for name in METHODS if not callable(getattr(Replica, name, None))] == []


@pytest.mark.parametrize(
    ("name", "message", "code"),
    [
        ("ModelStatistics", pb.ModelStatisticsRequest(), "UNIMPLEMENTED"),
        ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="vit"), "UNIMPLEMENTED"),
        ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="vit"), "UNIMPLEMENTED"),
        ("TraceSetting", pb.TraceSettingRequest(), "UNIMPLEMENTED"),
        ("ModelMetadata", pb.ModelMetadataRequest(name="nobody"), "NOT_FOUND"),
        ("ModelInfer", pb.ModelInferRequest(model_name="nobody"), "NOT_FOUND"),
        ("ModelInfer", pb.ModelInferRequest(model_name="x" * 3000), "RESOURCE_EXHAUSTED"),
    ],
    ids=["statistics", "load", "unload", "trace", "metadata of nobody", "inference of nobody", "too large"],
)
def test_refusals_carry_code_and_reason(name: str, message: Any, code: str, artifact: Path) -> None:
    context = Context()
    server = ServerSettings(artifacts=(artifact,), limits=Limits(body=2000))
    answer = ask(name, message, context, RaySettings(server))
    assert context.code is grpc.StatusCode[code]
    assert context.details
    assert answer.ByteSize() == 0


def test_metadata_does_not_promise_statistics(artifact: Path) -> None:
    answer = ask("ServerMetadata", pb.ServerMetadataRequest(), Context(), RaySettings(ServerSettings((artifact,))))
    assert "statistics" not in answer.extensions


def test_the_token_is_asked_for(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-of-20-letters")
    settings = RaySettings(ServerSettings((artifact,)), token_file=tmp_path / "token")
    refused, taken = Context(), Context(authorization="Bearer a-token-of-20-letters")
    ask("ServerMetadata", pb.ServerMetadataRequest(), refused, settings)
    answer = ask("ServerMetadata", pb.ServerMetadataRequest(), taken, settings)
    assert refused.code is grpc.StatusCode.UNAUTHENTICATED
    assert taken.code is None
    assert answer.name == "osa-runtime"


def test_messages_survive_pickling() -> None:
    assert f"{grpc_stubs.__name__}.{grpc_stubs.add_servicer.__name__}" == SERVICER
    message = pb.ModelInferRequest(model_name="vit", raw_input_contents=[b"1234"])
    assert pickle.loads(pickle.dumps(message)) == message
