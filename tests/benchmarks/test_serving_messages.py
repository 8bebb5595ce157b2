"""Requests of the load benchmark, and answers that must not count."""

from __future__ import annotations

import json

import numpy as np
import pytest
from serving_load.messages import PROTOCOLS, BadAnswer, HttpAnswer, Question, decode
from tritonclient.grpc import service_pb2

QUESTION = Question("m", "x", np.arange(4, dtype=np.float32).reshape(1, 4), np.array([[1.0, -2.0]], np.float32))


def answer(protocol: str, numbers: list[float], status: int = 200) -> HttpAnswer | bytes:
    raw = np.array(numbers, np.float32).tobytes()
    if protocol == "grpc":
        return service_pb2.ModelInferResponse(raw_output_contents=[raw]).SerializeToString()
    head = json.dumps({"outputs": [{"name": "y"} | ({"data": numbers} if protocol == "json" else {})]}).encode()
    return HttpAnswer(status, head + raw, len(head)) if protocol == "binary" else HttpAnswer(status, head)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_right_answers_pass(protocol: str) -> None:
    QUESTION.check(protocol, answer(protocol, [1.0, -2.0]))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("numbers", [[-2.0, 1.0], [1.0], [1.0, -2.0, 0.0], [1.0, -2.001]], ids=str)
def test_wrong_answers_do_not(protocol: str, numbers: list[float]) -> None:
    with pytest.raises(BadAnswer):
        QUESTION.check(protocol, answer(protocol, numbers))


@pytest.mark.parametrize("protocol", ["binary", "grpc"])
def test_nan_is_not_an_answer(protocol: str) -> None:
    with pytest.raises(BadAnswer, match="not the model's"):
        QUESTION.check(protocol, answer(protocol, [1.0, float("nan")]))


def test_errors_are_quoted() -> None:
    with pytest.raises(BadAnswer, match=r"503: .*outputs"):
        decode("json", answer("json", [1.0, -2.0], 503))


@pytest.mark.parametrize(("asked", "given"), [("json", "binary"), ("binary", "json")])
def test_an_answer_in_the_other_form_would_measure_something_else(asked: str, given: str) -> None:
    with pytest.raises(BadAnswer, match="other form"):
        decode(asked, answer(given, [1.0, -2.0]))


def test_numbers_of_grpc_answers_may_be_typed() -> None:
    response = service_pb2.ModelInferResponse()
    response.outputs.add().contents.fp32_contents.extend([1.0, -2.0])
    QUESTION.check("grpc", response.SerializeToString())


def test_binary_requests_say_where_the_tensor_begins() -> None:
    head, _, body = QUESTION.encode("binary").partition(b"\r\n\r\n")
    fields = dict(line.split(": ") for line in head.decode().split("\r\n")[1:])
    size = int(fields["Inference-Header-Content-Length"])
    assert int(fields["Content-Length"]) == len(body)
    assert json.loads(body[:size])["inputs"][0]["parameters"] == {"binary_data_size": 16}
    assert body[size:] == QUESTION.array.tobytes()
