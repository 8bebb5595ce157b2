"""gRPC messages: read as protobuf reads them, and refused before they take more memory than they are worth."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from tritonclient.grpc import service_pb2 as pb

from osa_runtime.serving.engine.limits import LARGE
from osa_runtime.serving.engine.messages import InferenceRequest, InferenceResponse, RequestedOutput
from osa_runtime.serving.grpc.messages import (
    TYPED,
    Parts,
    is_packed,
    parse_request,
    read_grpc_request,
    write_grpc_response,
)
from osa_runtime.serving.refusals import BadRequest, Refusal, TooLarge
from protobuf_fields import field

LIMIT = 1 << 26


def message(*arrays: ArrayLike, **fields: Any) -> Any:
    found = pb.ModelInferRequest(model_name="m", **fields)
    for index, values in enumerate(arrays):
        array = np.asarray(values, np.float32)
        found.inputs.add(name=f"x{index}", datatype="FP32", shape=array.shape)
        found.raw_input_contents.append(array.tobytes())
    return found


def typed(datatype: str, field: str, values: list[Any], shape: list[int] | None = None) -> Any:
    found = pb.ModelInferRequest(model_name="m")
    tensor = found.inputs.add(name="x", datatype=datatype, shape=[len(values)] if shape is None else shape)
    getattr(tensor.contents, field).extend(values)
    return found


def parse(content: bytes, limit: int = LIMIT) -> Any:
    """The message as the client wrote it, with its raw tensors wherever they were kept."""
    found, raw = parse_request(content, limit)
    found.raw_input_contents[:] = [bytes(values) for values in raw]
    return found


def read(found: Any) -> InferenceRequest:
    return read_grpc_request(found, found.raw_input_contents, LIMIT)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "deflate"])
def test_packed_messages_are_unpacked_up_to_the_limit(pack: Any) -> None:
    content = message(np.ones(1000)).SerializeToString()
    assert parse(pack(content), len(content)) == message(np.ones(1000))
    with pytest.raises(TooLarge, match="unpacks to more than"):
        parse(pack(content), len(content) - 1)
    with pytest.raises(BadRequest, match="is not valid"):
        parse(pack(content)[:-3])


def test_raw_tensors_may_be_as_large_as_the_message() -> None:
    large = message(np.ones((3, 1 << 20)), np.zeros(5), id="seven")
    assert parse(large.SerializeToString()) == large


def test_raw_tensors_of_a_large_message_are_not_copied() -> None:
    content = message(np.ones(1 << 20)).SerializeToString()
    found, raw = parse_request(content, LIMIT)
    array = read_grpc_request(found, raw, LIMIT).inputs["x0"]
    assert np.shares_memory(array, np.frombuffer(content, np.uint8))


def test_typed_values_may_be_large_too() -> None:
    large = typed("FP32", "fp32_contents", [0.5] * 100_000)
    assert parse(large.SerializeToString()) == large
    assert read(large).inputs["x"].shape == (100_000,)


FLOODS: dict[str, bytes] = {
    "outputs": b"\x32\x03\x0a\x01y" * 400_000,
    "inputs": b"\x2a\x00" * 1_000_000,
    "parameters": b"".join(b"\x22\x06\x0a\x04%04d" % n for n in range(9999)),
    "parameters of an input": field(5, b"\x22\x00" * 500_000),
    "input name": pb.ModelInferRequest(inputs=[{"name": "x" * 20_000_000}]).SerializeToString(),
    "model name": pb.ModelInferRequest(model_name="x" * 100_000).SerializeToString(),
    "shape": pb.ModelInferRequest(inputs=[{"shape": [1] * 100_000}]).SerializeToString(),
    "byte strings": pb.ModelInferRequest(
        inputs=[{"contents": {"bytes_contents": [b""] * 100_000}}]
    ).SerializeToString(),
    "empty raw tensors": b"\x3a\x00" * 1_000_000,
    "unknown fields": b"\x7a\x00" * 1_000_000,
    "typed values": field(5, field(5, field(3, b"\1" * (TYPED + 1)))),
    "values one by one": field(5, field(5, b"\x10\x01" * 500_000)),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_small_fields_are_not_made_objects(flood: str) -> None:
    content = FLOODS[flood]
    tracemalloc.start()
    with pytest.raises(Refusal, match=r"take more than \d+ bytes|at most 1000"):
        parse(content)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x3a\x10abc", "cut short"),
        (b"\x3a", "cut short or too long"),
        (b"\xff" * 12, "cut short or too long"),
        (b"\x3b", "wire type 3"),
        (b"\x2a\x03\x0a\x05abcde", "cut short"),
        (b"\x39abc", "cut short"),
    ],
)
def test_nonsense_is_told_before_it_is_parsed(content: bytes, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        Parts(content).measure(pb.ModelInferRequest.DESCRIPTOR, 0, len(content))


@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 255))
def test_whatever_is_measured_is_read_as_protobuf_reads_it(head: bytes, place: int, byte: int) -> None:
    whole = bytearray(message([1, 2, 3], [4]).SerializeToString() + b"\x3a\x00" * 3)
    whole[place % len(whole)] = byte
    for content in (bytes(whole), head + bytes(whole)):
        parts = Parts(content)
        try:
            parts.measure(pb.ModelInferRequest.DESCRIPTOR, 0, len(content))
        except BadRequest:
            continue
        assert len(content) <= LARGE
        assume(not is_packed(content))
        try:
            expected = pb.ModelInferRequest.FromString(content)
        except Exception:  # noqa: BLE001 - whatever protobuf refuses
            with pytest.raises(BadRequest, match="not a valid ModelInferRequest"):
                parse(content)
        else:
            assert parse(content) == expected
            apart = pb.ModelInferRequest.FromString(parts.without_raw())
            assert not apart.raw_input_contents
            apart.raw_input_contents.extend(bytes(values) for values in parts.raw)
            assert apart == expected


TYPED_VALUES = {
    "BOOL": ("bool_contents", [True, False]),
    "INT8": ("int_contents", [-128, 127]),
    "INT16": ("int_contents", [-32768, 32767]),
    "INT32": ("int_contents", [-(2**31), 2**31 - 1]),
    "INT64": ("int64_contents", [-(2**63), 2**63 - 1]),
    "UINT8": ("uint_contents", [0, 255]),
    "FP32": ("fp32_contents", [0.5, float("nan")]),
    "FP64": ("fp64_contents", [1e300, float("-inf")]),
}


@pytest.mark.parametrize("datatype", TYPED_VALUES)
def test_typed_values_keep_their_type_and_value(datatype: str) -> None:
    field, values = TYPED_VALUES[datatype]
    array = read(typed(datatype, field, values, [1, 2])).inputs["x"]
    assert array.shape == (1, 2)
    np.testing.assert_array_equal(array[0], np.array(values, array.dtype))


WRONG: dict[str, tuple[Any, str]] = {
    "range of INT8": (typed("INT8", "int_contents", [128]), "outside the range of INT8"),
    "range of UINT8": (typed("UINT8", "uint_contents", [256]), "outside the range of UINT8"),
    "too many": (typed("FP32", "fp32_contents", [0.5] * 65, [64]), "has 65 values, expected 64"),
    "too few": (typed("FP32", "fp32_contents", [], [64]), "has 0 values, expected 64"),
    "other field": (typed("FP32", "int_contents", [1]), "has 0 values, expected 1"),
    "zero next to huge": (typed("FP32", "fp32_contents", [], [0, 2**62, 2**62]), "is too large"),
    "FP16": (typed("FP16", "fp32_contents", [1.0]), "must be sent in raw_input_contents"),
    "no type": (typed("", "fp32_contents", [1.0]), "has the datatype ''"),
    "id": (message([1], id="x" * 1025), "id has 1025 characters"),
    "outputs twice": (message([1], outputs=[{"name": "y"}, {"name": "y"}]), "twice"),
    "many outputs": (message([1], outputs=[{}] * 1001), "outputs has 1001 entries"),
    "many inputs": (message(*[[1]] * 1001), "inputs has 1001 entries"),
    "inputs twice": (pb.ModelInferRequest(inputs=[{"name": "x", "datatype": "FP32", "shape": [0]}] * 2), "twice"),
    "raw and contents": (
        pb.ModelInferRequest(
            inputs=[{"name": "x", "datatype": "FP32", "shape": [1], "contents": {}}], raw_input_contents=[b"\0" * 4]
        ),
        "although the request has raw_input_contents",
    ),
    "raw without inputs": (pb.ModelInferRequest(raw_input_contents=[b"x"]), "expected one for each of 0 inputs"),
    "BOOL bytes": (
        pb.ModelInferRequest(inputs=[{"name": "b", "datatype": "BOOL", "shape": [2]}], raw_input_contents=[b"\0\2"]),
        "bytes other than 0 and 1",
    ),
    "parameter": (pb.ModelInferRequest(parameters={"p" * 300: {}}), "The parameter p{200} has no value"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case: str) -> None:
    wrong, reason = WRONG[case]
    with pytest.raises(Refusal, match=reason):
        read(wrong)


def test_long_names_are_cut() -> None:
    request = read(
        pb.ModelInferRequest(
            inputs=[{"name": "x" * 5000, "datatype": "FP32", "shape": [0], "contents": {}}],
            outputs=[{"name": "y" * 5000}],
        )
    )
    assert list(request.inputs) == ["x" * 200]
    assert request.outputs[0].name == "y" * 200


@pytest.mark.parametrize("identity", ["", "abc", "é" * 300])
@pytest.mark.parametrize("rows", [0, 1, 40_000])
def test_an_answer_has_every_output_and_the_id(identity: str, rows: int) -> None:
    outputs = {"y": np.arange(rows * 3, dtype=np.float32).reshape(rows, 3), "n": np.ones((2, 1), np.int64)}
    response = InferenceResponse("model", "3", identity, outputs)
    expected = pb.ModelInferResponse(
        model_name="model",
        model_version="3",
        id=identity,
        outputs=[
            {"name": "y", "datatype": "FP32", "shape": [rows, 3]},
            {"name": "n", "datatype": "INT64", "shape": [2, 1]},
        ],
        raw_output_contents=[array.tobytes() for array in outputs.values()],
    )
    assert write_grpc_response(InferenceRequest("model", "", {}), response) == expected
    one = write_grpc_response(InferenceRequest("model", "", {}, [RequestedOutput("n", True)]), response)
    assert [output.name for output in one.outputs] == ["n"]
