"""Reading REST requests: every type, JSON and binary, and everything that can be wrong with them."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osa_runtime.serving.engine.messages import InferenceRequest, InferenceResponse
from osa_runtime.serving.protocol.tensors import NUMPY_NAMES
from osa_runtime.serving.refusals import BadRequest, Refusal, TooLarge
from osa_runtime.serving.rest.body import write_response
from osa_runtime.serving.rest.request import RequestHead, read_request
from osa_runtime.serving.settings import Limits

LIMITS = Limits(body=100_000, tensor=10_000)


def read(body: Any, header_length: str | None = None, encoding: str | None = None) -> InferenceRequest:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_request(RequestHead("m", "", header_length, encoding, None, ""), content, LIMITS)


def tensor(**fields: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]} | fields]}


VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False, True],
    "UINT8": [0, 255, 7],
    "INT8": [-128, 127, 0],
    "INT16": [-32768, 32767, 5],
    "INT32": [-(2**31), 2**31 - 1, 5],
    "INT64": [-(2**63), 2**63 - 1, 5],
    "FP16": [0.5, -2, 65504],
    "FP32": [0.1, -3e38, 7],
    "FP64": [0.1, 1e308, -7],
}


@pytest.mark.parametrize("datatype", NUMPY_NAMES)
def test_every_type_travels_as_json_and_as_bytes(datatype: str) -> None:
    array = np.array(VALUES[datatype], NUMPY_NAMES[datatype]).reshape(1, 3)
    as_json = read(tensor(datatype=datatype, shape=[1, 3], data=[VALUES[datatype]])).inputs["x"]
    header = orjson.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "datatype": datatype,
                    "shape": [1, 3],
                    "parameters": {"binary_data_size": array.nbytes},
                }
            ]
        }
    )
    as_bytes = read(header + array.tobytes(), str(len(header))).inputs["x"]
    for found in (as_json, as_bytes):
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("datatype", NUMPY_NAMES)
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_every_type_comes_back(datatype: str, binary: bool) -> None:
    array = np.array(VALUES[datatype], NUMPY_NAMES[datatype]).reshape(3, 1)
    request = InferenceRequest("m", "1", {}, binary=binary)
    headers, body = write_response(request, InferenceResponse("m", "1", "id", {"y": array[::-1]}))
    size = int(dict(headers).get(b"inference-header-content-length", str(len(body))))
    output = orjson.loads(body[:size])["outputs"][0]
    assert (output["datatype"], output["shape"]) == (datatype, [3, 1])
    if binary:
        assert body[size:] == array[::-1].tobytes()
    else:
        assert np.array(output["data"], array.dtype).tolist() == array[::-1].ravel().tolist()


WRONG: dict[str, tuple[Any, str]] = {
    "no JSON": (b"{", "not valid JSON"),
    "a list": ([], "Expected `object`, got `array`"),
    "deep": (b'{"a":' + b"[" * 100_000, "not valid JSON"),
    "deep parameters": ({"inputs": [], "parameters": {"a": [[[[]]]]}}, "got `array` - at `$.parameters[...]`"),
    "no inputs": ({}, "missing required field `inputs`"),
    "inputs no objects": ({"inputs": [1]}, "Expected `object`, got `int` - at `$.inputs[0]`"),
    "no name": ({"inputs": [{}]}, "missing required field `name` - at `$.inputs[0]`"),
    "no shape": (tensor(shape=None), "has the shape None"),
    "negative": (tensor(shape=[-1]), "at least 0"),
    "fractional": (tensor(shape=[2.0]), "whole numbers"),
    "bool axis": (tensor(shape=[True]), "whole numbers"),
    "rank": (tensor(shape=[1] * 17), "has the shape"),
    "huge": (tensor(shape=[2**40, 256]), "expected at most 10000"),
    "huge next to none": (tensor(shape=[2**40, 0]), "expected at most 10000"),
    "many next to none": (tensor(shape=[0, *[2000] * 15], data=[]), "expected at most 10000"),
    "overflow": (tensor(shape=[9999, 9999, 9999, 9999, 9999]), "expected at most 10000"),
    "type": (tensor(datatype="FP8"), "expected one of BOOL"),
    "bytes": (tensor(datatype="BYTES", data=["a", "b"]), "expected one of BOOL"),
    "list as type": (tensor(datatype=["FP32"]), "expected one of BOOL"),
    "strings": (tensor(data=["1", "2"]), "not FP32"),
    "null": (tensor(data=[None, 1]), "not FP32"),
    "bools for floats": (tensor(data=[True, False]), "not FP32"),
    "floats for ints": (tensor(datatype="INT64", data=[1.5, 2]), "expected whole numbers"),
    "ints for bools": (tensor(datatype="BOOL", data=[1, 0]), "expected true and false"),
    "ragged": (tensor(shape=[2, 2], data=[[1], [2, 3, 4]]), "cannot be read"),
    "nested otherwise": (tensor(shape=[2, 2], data=[[1, 2, 3, 4]]), "cannot be read"),
    "an empty list": (tensor(shape=[1], data=[]), "has 0 values, expected 1"),
    "empty lists": (tensor(shape=[2, 1], data=[[], [3]]), "not FP32"),
    "a value for none": (tensor(shape=[0], data=[5]), "has 0 values, expected 0"),
    "a scalar": (tensor(shape=[1], data=5), "not FP32"),
    "object": (tensor(data={"a": 1}), "not FP32"),
    "too few": (tensor(data=[1]), "has 1 values, expected 2"),
    "out of range": (tensor(datatype="UINT8", data=[0, 256]), "outside 0…255"),
    "beyond float32": (tensor(data=[1e39, 0]), "the range of float32"),
    "huge integer": (tensor(datatype="INT64", data=[2**64, 0]), "outside -9223372036854775808"),
    "no data": ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}, "neither data nor"),
    "both": (tensor(parameters={"binary_data_size": 8}), "both data and binary_data_size"),
    "twice": ({"inputs": tensor()["inputs"] * 2}, "given twice"),
    "id": (tensor() | {"id": 7}, "Expected `str | null`, got `int` - at `$.id`"),
    "outputs": (tensor() | {"outputs": "y"}, "Expected `array | null`, got `str` - at `$.outputs`"),
    "output twice": (tensor() | {"outputs": [{"name": "y"}, {"name": "y"}]}, "names an output twice"),
    "classes": (tensor() | {"outputs": [{"name": "y", "parameters": {"classification": -1}}]}, "classification"),
}


def test_null_is_taken_for_what_is_left_out() -> None:
    request = read(tensor(parameters=None) | {"id": None, "outputs": None, "parameters": None})
    assert (request.id, request.outputs, request.parameters) == ("", [], {})


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case: str) -> None:
    body, message = WRONG[case]
    with pytest.raises(BadRequest) as raised:
        read(body)
    assert message in str(raised.value)
    assert raised.value.status in (400, 413)


@pytest.mark.parametrize(
    ("header_length", "size", "rest", "message"),
    [
        ("abc", 8, b"", "Inference-Header-Content-Length"),
        ("-1", 8, b"", "Inference-Header-Content-Length"),
        ("99999", 8, b"", "Inference-Header-Content-Length"),
        (None, 8, b"1234567", "7 left"),
        (None, 8, b"123456789", "1 bytes after"),
        (None, 4, b"1234", "4 bytes of data, expected 8"),
        (None, -8, b"12345678", "binary_data_size"),
        (None, True, b"12345678", "binary_data_size"),
    ],
)
def test_binary_sizes_must_fit(header_length: str | None, size: Any, rest: bytes, message: str) -> None:
    fields = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": size}}
    header = orjson.dumps({"inputs": [fields]})
    with pytest.raises(BadRequest, match=message):
        read(header + rest, header_length or str(len(header)))


def test_bytes_that_are_no_bools_are_refused() -> None:
    header = orjson.dumps(
        {"inputs": [{"name": "x", "datatype": "BOOL", "shape": [2], "parameters": {"binary_data_size": 2}}]}
    )
    with pytest.raises(BadRequest, match="other than 0 and 1"):
        read(header + b"\x01\x02", str(len(header)))


def test_compressed_bodies_are_unpacked_within_the_limit() -> None:
    body = orjson.dumps(tensor())
    assert read(gzip.compress(body), encoding="gzip").inputs["x"].tolist() == [1, 2]
    assert read(zlib.compress(body), encoding="deflate").inputs["x"].tolist() == [1, 2]
    with pytest.raises(TooLarge, match="unpacks to more than 100000"):
        read(gzip.compress(b" " * 10_000_000), encoding="gzip")
    for encoding, content in (("gzip", b"no"), ("deflate", zlib.compress(body)[:-3]), ("br", body)):
        with pytest.raises(BadRequest):
            read(content, encoding=encoding)


ACCEPTABLE = (200, 400, 413)


def status_of(*arguments: Any) -> int:
    try:
        read(*arguments)
    except Refusal as refusal:
        return refusal.status
    return 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(sorted(tensor()["inputs"][0])), inner),
    max_leaves=12,
)


@given(st.fixed_dictionaries({"inputs": JSON | st.lists(JSON, max_size=3), "outputs": JSON, "parameters": JSON}))
def test_any_json_is_read_or_refused(fields: dict[str, Any]) -> None:
    assert status_of(fields) in ACCEPTABLE


@given(
    st.binary(max_size=200), st.sampled_from([None, "0", "5", "200", ""]), st.sampled_from([None, "gzip", "deflate"])
)
def test_any_bytes_are_read_or_refused(body: bytes, header_length: str | None, encoding: str | None) -> None:
    assert status_of(body, header_length, encoding) in ACCEPTABLE
