"""gRPC messages, metadata and streams that mean something else than they seem to, and floods of every other call."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gzip
import itertools
import re
import shutil
import struct
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hpack import Encoder
from hyperframe import frame as frames
from tritonclient.grpc import service_pb2 as pb

from canary import Target
from grpc_attack import BAD, HEADERS, INFER, STREAM, TOO_MUCH, channel, peer, push, raw, said, tensor, valid
from protobuf_fields import field

SERVICE = "/inference.GRPCInferenceService"
UNAVAILABLE, UNIMPLEMENTED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED


@pytest.fixture(scope="module")
def open_ended(exported: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The same model next to one that takes batches of any size, so that large messages can be valid."""
    home = tmp_path_factory.mktemp("open-ended")
    shutil.copytree(exported("vit", "onnx"), home / "vit-onnx")
    shutil.copytree(home / "vit-onnx", home / "large")
    with Target(home / "vit-onnx", home / "large", "--max-batch", "1000000") as running:
        yield running


def typed(datatype: str = "FP32", shape: tuple[int, ...] = (1, 1, 8, 8), **contents: Any) -> bytes:
    request = pb.ModelInferRequest(model_name="vit-onnx")
    tensor = request.inputs.add(name="images", datatype=datatype, shape=shape)
    for name, given in contents.items():
        getattr(tensor.contents, name).extend(given)
    return request.SerializeToString()


def asks(**parameters: Any) -> bytes:
    request = pb.ModelInferRequest.FromString(raw([1, 1, 8, 8], bytes(256)))
    for name, (kind, value) in parameters.items():
        setattr(request.parameters[name], kind, value)
    return request.SerializeToString()


MESSAGES: dict[str, bytes] = {
    "typed values of another type": typed(fp64_contents=[0.5] * 64),
    "typed values of two types": typed(fp64_contents=[0.5] * 64, int_contents=[1] * 64),
    "truth for numbers": typed(bool_contents=[True] * 64),
    "too few typed values": typed(fp32_contents=[0.5] * 63),
    "an integer beyond 8 bits": typed("UINT8", uint_contents=[256] * 64),
    "an integer below 8 bits": typed("INT8", int_contents=[-129] * 64),
    "half precision in a typed list": typed("FP16", fp32_contents=[0.5] * 64),
    "strings": typed("BYTES", bytes_contents=[b"x"] * 64),
    "NaN in a typed list": typed(fp32_contents=[float("nan")] * 64),
    "no model": raw([1, 1, 8, 8], bytes(256))[10:],
    "typed and raw together": typed(fp32_contents=[0.5] * 64) + field(7, bytes(256)),
    "more raw tensors than inputs": raw([1, 1, 8, 8], bytes(256)) + field(7, b""),
    "fewer bytes than the shape": raw([1, 1, 8, 8], bytes(255)),
    "more bytes than the shape": raw([1, 1, 8, 8], bytes(257)),
    "no rows": raw([0, 1, 8, 8], b""),
    "no axes": raw([], bytes(4)),
    "bytes of another type": raw([1, 1, 8, 8], bytes(512), "FP64"),
    "a timeout that is a text": asks(timeout=("string_param", "x" * 10_000)),
    "a negative timeout": asks(timeout=("int64_param", -(2**63))),
    "a timeout that is true": asks(timeout=("bool_param", True)),
    "nonfinite answers allowed by a number": asks(allow_nonfinite=("int64_param", 1)),
    "a parameter without a value": raw([1, 1, 8, 8], bytes(256)) + field(4, field(1, b"a")),
    "gzip in gzip": gzip.compress(gzip.compress(raw([1, 1, 8, 8], bytes(256)))),
    "a bomb of deflate": zlib.compress(bytes(60_000_000), 9),
    "half of gzip": gzip.compress(raw([1, 1, 8, 8], bytes(256)))[:-4],
    "a raw tensor without an input": field(1, b"vit-onnx") + field(7, bytes(256)),
    "an input twice": raw([1, 1, 8, 8], bytes(256)) + tensor()[10:] + field(7, bytes(256)),
    "no values at all": tensor(),
    "an empty typed list next to raw bytes": tensor(contents={}) + field(7, bytes(256)),
    "an axis of no values": raw([1, 1, 8, 0], b""),
    "infinity in a typed list": typed(fp32_contents=[float("inf")] * 64),
    "a version of zeros": raw([1, 1, 8, 8], bytes(256)) + field(2, b"01"),
    "a version in wide digits": raw([1, 1, 8, 8], bytes(256)) + field(2, "１".encode()),
    "a version with a null": raw([1, 1, 8, 8], bytes(256)) + field(2, b"1\0"),
    "an id of 1,025 snakes": raw([1, 1, 8, 8], bytes(256)) + field(3, "🐍".encode() * 1025),
    "an output without a name": raw([1, 1, 8, 8], bytes(256)) + field(6, b""),
    "the first bytes of gzip": b"\x1f\x8b",
    "the first bytes of deflate": b"\x78\x9c",
    "unknown fields without end": raw([1, 1, 8, 8], bytes(256)) + field(15, b"x" * 100) * 200_000,
    "unknown messages in messages": raw([1, 1, 8, 8], bytes(256)) + b"\x0b" * 10_000 + b"\x0c" * 10_000,
}  # fmt: skip


def test_streams_that_are_cancelled_leave_nothing_behind(target: Target) -> None:
    message = valid(target)
    for _ in range(20):
        with channel(target) as opened:
            call = opened.stream_stream(STREAM)(iter([message] * 100))
            call.cancel()
    deadline = time.monotonic() + 10
    while not re.search(r"^osa_serve_queue\{.*\} 0.0$", metrics(target), re.MULTILINE):
        assert time.monotonic() < deadline


def metrics(target: Target) -> str:
    with urllib.request.urlopen(f"{target.server.url}/metrics", timeout=30) as answer:
        return answer.read().decode()


@pytest.mark.parametrize("case", MESSAGES)
def test_messages_that_do_not_mean_the_values_are_refused(target: Target, case: str) -> None:
    with channel(target) as opened, pytest.raises(grpc.RpcError) as raised:
        opened.unary_unary(INFER)(MESSAGES[case], timeout=10)
    assert raised.value.code() in (BAD, TOO_MUCH, grpc.StatusCode.NOT_FOUND), raised.value.details()


def test_errors_in_a_stream_carry_their_ids_and_the_stream_goes_on(target: Target) -> None:
    own = [content for content in MESSAGES.values() if content[:1] == b"\x0a" and len(content) < 100_000]
    wrong = [field(3, b"%d" % number) + content for number, content in enumerate(own)]
    with channel(target) as opened:
        found = list(opened.stream_stream(STREAM)(iter([*wrong, valid(target, id="last")] * 20), timeout=60))
    answers = [pb.ModelStreamInferResponse.FromString(content) for content in found]
    assert len(answers) == 20 * (len(wrong) + 1)
    for number, answer in enumerate(answers):
        last = number % (len(wrong) + 1) == len(wrong)
        assert bool(answer.error_message) != last
        assert (answer.infer_response.id == "last") == last


METADATA: dict[str, list[tuple[str, str]]] = {
    "a deadline of 10,000 years": [("grpc-timeout", "99999999H")],
    "a deadline that is over": [("grpc-timeout", "0n")],
    "a deadline that is nonsense": [("grpc-timeout", "soon")],
    "a negative deadline": [("grpc-timeout", "-1S")],
    "a compression that nobody has": [("grpc-encoding", "snappy")],
    "compressions without end": [("grpc-accept-encoding", "gzip," * 5000)],
    "another content type": [("content-type", "application/json")],
    "a trace without end": [("traceparent", "0" * 10_000)],
    "two tokens": [("authorization", "a"), ("authorization", "b")],
}


@pytest.mark.parametrize("flag", [0, 1, 7])
@pytest.mark.parametrize("case", METADATA)
def test_metadata_of_a_peer(target: Target, case: str, flag: int) -> None:
    """The peer is answered or cut off."""
    given = METADATA[case]
    kept = [(name, value) for name, value in HEADERS if name not in dict(given)]
    message = valid(target)
    with peer(target) as sock:
        block = Encoder().encode([*kept, *given], huffman=False)
        push(sock, frames.HeadersFrame(1, block, flags=["END_HEADERS"]).serialize())
        content = struct.pack(">BI", flag, len(message)) + message
        push(sock, frames.DataFrame(1, content, flags=["END_STREAM"]).serialize())
        assert said(sock, 0.3)


@pytest.mark.parametrize("sizes", [(0,), (1000,), (10, 10), (2**31,)], ids=str)
def test_messages_of_another_length_than_announced(target: Target, sizes: tuple[int, ...]) -> None:
    message = valid(target)
    with peer(target) as sock:
        push(sock, frames.HeadersFrame(1, Encoder().encode(HEADERS, huffman=False), flags=["END_HEADERS"]).serialize())
        content = b"".join(struct.pack(">BI", 0, size) + message for size in sizes)
        push(sock, frames.DataFrame(1, content, flags=["END_STREAM"]).serialize())
        assert said(sock, 0.3)


def test_those_who_watch_the_health_and_never_leave(target: Target) -> None:
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(channel(target)) for _ in range(8)]
        watch = [each.unary_stream("/grpc.health.v1.Health/Watch") for each in opened]
        calls = [watch[n % 8](field(1, b"" if n % 2 else b"nothing"), timeout=60) for n in range(400)]
        for call in calls:
            stack.callback(call.cancel)
        assert next(calls[1]) == b"\x08\x01"
        time.sleep(1)


def test_reflection_without_end(target: Target) -> None:
    """Questions without a pause, and answers that nobody reads."""
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        stack.callback(stop.set)
        for _ in range(4):
            opened = stack.enter_context(channel(target))
            ask = opened.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
            symbol = field(4, b"inference.GRPCInferenceService")
            stack.callback(ask(iter(lambda: None if stop.is_set() else symbol, None)).cancel)  # noqa: B023 - a constant
        time.sleep(2)


def test_other_calls_in_a_flood(target: Target) -> None:
    name = field(1, b"vit-onnx")
    calls = [
        ("ModelStatistics", name, None), ("ModelStatistics", b"", None), ("RepositoryIndex", b"", None),
        ("ModelConfig", name, None), ("ServerMetadata", b"", None), ("ModelReady", field(1, b"nothing"), None),
        ("RepositoryModelLoad", field(2, b"vit-onnx"), None), ("RepositoryModelLoad", field(2, b"../.."), "NOT_FOUND"),
        ("RepositoryModelUnload", field(2, b"nothing"), "NOT_FOUND"), ("TraceSetting", b"", "UNIMPLEMENTED"),
        ("LogSettings", b"", "UNIMPLEMENTED"), ("SystemSharedMemoryRegister", b"", "UNIMPLEMENTED"),
        ("ModelStatistics", field(2, b"1"), "NOT_FOUND"), ("ModelMetadata", name + field(2, b"01"), "INVALID_ARGUMENT"),
    ]  # fmt: skip
    end = time.monotonic() + 2

    def flood(start: int) -> None:
        with channel(target) as opened:
            for method, content, expected in itertools.islice(itertools.cycle(calls), start, None):
                if time.monotonic() > end:
                    return
                asked = opened.unary_unary(f"{SERVICE}/{method}").future(content, timeout=30)
                code = asked.exception() and asked.code()
                assert code == (expected and grpc.StatusCode[expected]), (method, asked.details())

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(flood, range(8)))


def test_streams_with_one_request_that_never_end(target: Target) -> None:
    never = threading.Event()
    with contextlib.ExitStack() as stack:
        stack.callback(never.set)
        opened = [stack.enter_context(channel(target)) for _ in range(8)]
        for number in range(200):
            messages = itertools.chain([valid(target)], iter(lambda: never.wait(60) and None, None))
            call = opened[number % 8].stream_stream(STREAM)(messages, timeout=60)
            stack.callback(call.cancel)
            next(call)


def test_large_messages_are_refused_by_their_shape(open_ended: Target) -> None:
    """Of a model without a limit: the values of 40 MB are not read."""
    with open_ended.watched(), channel(open_ended) as opened:
        wrong = pb.ModelInferRequest(model_name="large", raw_input_contents=[bytes(40_000_000)])
        wrong.inputs.add(name="images", datatype="FP32", shape=[10_000_000])
        with pytest.raises(grpc.RpcError, match="shape") as raised:
            opened.unary_unary(INFER)(wrong.SerializeToString(), timeout=30)
        assert raised.value.code() == BAD


def test_many_large_messages_share_one_budget(open_ended: Target) -> None:
    images = np.full((60_000, 1, 8, 8), np.nan, np.float32)  # 15 MB, and of a shape that the model takes
    request = pb.ModelInferRequest(model_name="large", raw_input_contents=[images.tobytes()])
    request.inputs.add(name="images", datatype="FP32", shape=images.shape)
    content = request.SerializeToString()
    with open_ended.watched(), contextlib.ExitStack() as stack:
        opened = [stack.enter_context(channel(open_ended)) for _ in range(12)]
        calls = [each.unary_unary(INFER).future(content, timeout=60) for each in opened]
        codes = {call.exception() and call.code() for call in calls}
    assert codes <= {BAD, UNAVAILABLE}
    assert BAD in codes
