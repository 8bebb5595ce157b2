"""gRPC messages that repeat are read once, and mean what the protobuf library says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from osa_runtime.serving import grpc_messages
from osa_runtime.serving.grpc_messages import REMEMBERED, InferMessages
from osa_runtime.serving.grpc_request import read_grpc_request
from osa_runtime.serving.grpc_response import write_grpc_response
from osa_runtime.serving.messages import InferenceRequest, InferenceResponse, RequestedOutput
from osa_runtime.serving.refusals import BadRequest

LIMIT = 1 << 20


def message(*values: Any, model: str = "mlp", shape: tuple[int, ...] | None = None, **fields: Any) -> Any:
    found = pb.ModelInferRequest(model_name=model, **fields)
    for index, value in enumerate(values):
        array = np.asarray(value, np.float32)
        found.inputs.add(name=f"x{index}", datatype="FP32", shape=shape or array.shape)
        found.raw_input_contents.append(array.tobytes())
    return found


def assert_same(found: InferenceRequest, expected: InferenceRequest) -> None:
    assert found.inputs.keys() == expected.inputs.keys()
    for name, array in expected.inputs.items():
        np.testing.assert_array_equal(found.inputs[name], array)
        assert found.inputs[name].dtype == array.dtype
        assert found.inputs[name].shape == array.shape
    for name in ("model", "version", "outputs", "id", "parameters"):
        assert getattr(found, name) == getattr(expected, name)


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the messages that went through the protobuf library."""
    sizes: list[int] = []
    parse = grpc_messages.parse_message

    def counting(kind: Any, content: bytes) -> Any:
        sizes.append(len(content))
        return parse(kind, content)

    monkeypatch.setattr(grpc_messages, "parse_message", counting)
    return sizes


def test_a_message_that_repeats_is_parsed_once(parses: list[int]) -> None:
    messages = InferMessages(LIMIT)
    output = pb.ModelInferRequest.InferRequestedOutputTensor(name="y")
    for seed in range(4):
        random = np.random.default_rng(seed)
        one = message(random.normal(size=(2, 3)), random.normal(size=(200,)), model_version="2", outputs=[output])
        one.parameters["timeout"].int64_param = 7
        assert_same(messages.read(one.SerializeToString()), read_grpc_request(one, LIMIT))
    assert len(parses) == 1


PAIRS = {
    "another model": (message([1, 2], model="mlp"), message([1, 2], model="abc")),
    "another shape of as many values": (message([[1, 2]]), message([[1], [2]])),
    "the same bytes cut elsewhere": (message([1, 2], [3]), message([1], [2, 3])),
    "another id": (message([1, 2], id="a"), message([1, 2], id="b")),
    "another version": (message([1], model_version="1"), message([1], model_version="2")),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
def test_messages_of_one_size_are_told_apart(pair: tuple[Any, Any]) -> None:
    contents = [each.SerializeToString() for each in pair]
    assert len(contents[0]) == len(contents[1])
    messages = InferMessages(LIMIT)
    for _ in range(3):
        for content, each in zip(contents, pair, strict=True):
            assert_same(messages.read(content), read_grpc_request(each, LIMIT))


def test_what_is_wrong_stays_wrong_when_it_repeats() -> None:
    messages = InferMessages(LIMIT)
    good = pb.ModelInferRequest(model_name="m")
    good.inputs.add(name="b", datatype="BOOL", shape=[2])
    good.raw_input_contents.append(b"\0\1")
    bad = pb.ModelInferRequest()
    bad.CopyFrom(good)
    bad.raw_input_contents[0] = b"\0\2"
    for _ in range(2):
        assert messages.read(good.SerializeToString()).inputs["b"].tolist() == [False, True]
        with pytest.raises(BadRequest, match="bytes other than 0 and 1"):
            messages.read(bad.SerializeToString())
        with pytest.raises(BadRequest, match="is not a valid ModelInferRequest"):
            messages.read(b"\xff" * len(good.SerializeToString()))


def test_a_field_that_hides_tensors_does_not_move_them(parses: list[int]) -> None:
    """Unknown fields may hold whatever bytes; only those of real tensors are taken for tensors."""
    data = np.array([1, 2], np.float32).tobytes()
    raw = pb.ModelInferRequest(raw_input_contents=[data]).SerializeToString()
    head = message([1, 2])
    del head.raw_input_contents[:]
    hidden = b"\xfa\x01" + bytes([len(raw)])  # field 31, unknown, as long as a tensor's field
    content = head.SerializeToString() + raw + hidden + raw
    messages = InferMessages(LIMIT)
    for _ in range(2):
        assert messages.read(content).inputs["x0"].tolist() == [1, 2]
    other = content[: -len(data)] + np.array([3, 4], np.float32).tobytes()
    assert messages.read(other).inputs["x0"].tolist() == [1, 2]
    assert len(parses) == 3


def test_few_messages_are_remembered() -> None:
    messages = InferMessages(LIMIT)
    for size in range(1, 3 * REMEMBERED):
        messages.read(message(np.ones(size)).SerializeToString())
    assert 0 < len(messages._known) <= REMEMBERED


@given(st.binary(max_size=60), st.integers(0, 60), st.integers(0, 255))
def test_any_change_of_a_known_message_is_read_as_protobuf_reads_it(head: bytes, place: int, byte: int) -> None:
    messages = InferMessages(LIMIT)
    first = message([1, 2, 3], [4]).SerializeToString()
    messages.read(first)
    changed = bytearray(first)
    changed[place % len(first)] = byte
    for content in (bytes(changed), head[: len(first)] + first[len(head) :]):
        try:
            expected = read_grpc_request(pb.ModelInferRequest.FromString(content), LIMIT)
        except Exception:  # noqa: BLE001 - whatever the library or we refuse
            with pytest.raises(Exception):  # noqa: B017, PT011
                messages.read(content)
        else:
            assert_same(messages.read(content), expected)


@pytest.mark.parametrize("identity", ["", "abc", "é" * 300])
@pytest.mark.parametrize("rows", [0, 1, 40_000])
def test_an_answer_is_the_message_that_protobuf_would_write(identity: str, rows: int) -> None:
    outputs = {"y": np.arange(rows * 3, dtype=np.float32).reshape(rows, 3), "n": np.ones((2, 1), np.int64)}
    response = InferenceResponse("model", "3", identity, outputs)
    tensor = pb.ModelInferResponse.InferOutputTensor
    expected = pb.ModelInferResponse(
        model_name="model",
        model_version="3",
        id=identity,
        outputs=[tensor(name="y", datatype="FP32", shape=[rows, 3]), tensor(name="n", datatype="INT64", shape=[2, 1])],
        raw_output_contents=[array.tobytes() for array in outputs.values()],
    )
    for _ in range(2):
        content = write_grpc_response(InferenceRequest("model", "", {}), response)
        assert pb.ModelInferResponse.FromString(content) == expected
    one = write_grpc_response(InferenceRequest("model", "", {}, [RequestedOutput("n", True)]), response)
    assert [output.name for output in pb.ModelInferResponse.FromString(one).outputs] == ["n"]
