"""The REST surface against its own description: schemathesis makes requests that fit it, and requests that do not.

A few hundred here, the same ones at every run; ``make fuzz`` runs many more and other ones each time.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osa_runtime.serving.rest.openapi import openapi
from serving_process import ServerProcess

schemathesis = pytest.importorskip("schemathesis")
from schemathesis import checks as known  # noqa: E402 - after the skip

EXAMPLES = int(os.environ.get("OSA_FUZZ_EXAMPLES", "10"))  # per call of the description
CHECKS = (
    known.status_code_conformance,
    known.content_type_conformance,
    known.response_headers_conformance,
    known.response_schema_conformance,
    known.unsupported_method,
)


@pytest.fixture(scope="module")
def fuzzed(served_models: Path) -> Iterator[ServerProcess]:
    limits = ["--max-body-mb", "1", "--max-tensor-mb", "0.5", "--versions", "2"]
    with ServerProcess("--repository", served_models, *limits) as running:
        yield running
        assert running.stop() == 0
        assert running.noise == []
        assert [event for event in running.events if event.get("level") == "error"] == []


def name_a_model(context: Any, values: Any) -> Any:
    """Every second name is that of a model, or everything would end at a 404; but the models stay loaded."""
    size = len(str(values["name"])) if values and "name" in values else 1
    if size % 2 or context.operation.path.endswith("unload"):
        return values
    return values | {"name": "encoder" if size % 4 else "vit"}


def name_the_inputs(context: Any, body: Any) -> Any:
    """Name inputs correctly in some requests, so that they reach the model."""
    if context.operation.path.endswith("infer") and isinstance(body, dict):
        for number, item in enumerate(body["inputs"] if isinstance(body.get("inputs"), list) else ()):
            if isinstance(item, dict) and isinstance(item.get("name"), str) and len(item["name"]) % 2:
                item["name"] = ("images", "tokens", "mask")[number % 3]
    return body


schema = schemathesis.openapi.from_dict(openapi())
schema.hook("map_path_parameters")(name_a_model)
schema.hook("map_body")(name_the_inputs)


def effort(examples: int) -> settings:
    return settings(
        max_examples=examples,
        derandomize="OSA_FUZZ_EXAMPLES" not in os.environ,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@schema.parametrize()
@effort(EXAMPLES)
def test_every_answer_is_one_that_is_described(case: Any, fuzzed: ServerProcess) -> None:
    response = case.call(base_url=fuzzed.url)
    # 413 and 422 refuse wrong data, too, which the check of that does not know
    rejected = () if response.status_code in (413, 422) else (known.negative_data_rejection,)
    case.validate_response(response, checks=[*CHECKS, *rejected])
    check_error(response.status_code, response.content)
    assert fuzzed.process.poll() is None


def check_error(status: int, content: bytes) -> None:
    if status >= 400 and content:
        message = json.loads(content)["error"]
        assert message
        assert status != 500


def valid() -> dict[str, Any]:
    tensors = [
        {"name": "tokens", "datatype": "INT64", "shape": [1, 3], "data": [1, 2, 3], "parameters": {}},
        {"name": "mask", "datatype": "BOOL", "shape": [1, 3], "data": [[True, True, False]]},
    ]
    outputs = [{"name": "logits", "parameters": {"binary_data": False, "classification": 0}}]
    return {"id": "7", "inputs": tensors, "outputs": outputs, "parameters": {"timeout": 9_000_000}}


LEAF = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(["FP32", 2**63, -1])
)
VALUE = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner))


@given(st.data())
@effort(10 * EXAMPLES)
def test_one_change_of_a_good_request_gives_an_answer_or_says_what_is_wrong(
    fuzzed: ServerProcess, data: st.DataObject
) -> None:
    body: Any = valid()
    place = body
    for _ in range(data.draw(st.integers(0, 3), "depth")):
        keys = list(place) if isinstance(place, dict) else range(len(place))
        inner = [key for key in keys if isinstance(place[key], (dict, list)) and place[key]]
        if not inner:
            break
        place = place[data.draw(st.sampled_from(inner), "way")]
    keys = list(place) if isinstance(place, dict) else list(range(len(place)))
    key = data.draw(st.sampled_from(keys), "key")
    if data.draw(st.booleans(), "leave out"):
        del place[key]
    else:
        place[key] = data.draw(VALUE, "value")
    host, _, port = fuzzed.http.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    connection.request("POST", "/v2/models/encoder/infer", json.dumps(body))
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    assert answer.status in (200, 400, 413, 422, 503)
    check_error(answer.status, content)
    if answer.status == 200:
        size = answer.getheader("Inference-Header-Content-Length")  # the change may ask for raw tensors
        assert json.loads(content[: int(size)] if size else content)["outputs"][0]["name"] == "logits"
    if answer.status == 503:
        assert "timeout" in json.loads(content)["error"]
