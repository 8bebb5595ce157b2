"""The calls of REST, and their description at ``/openapi.json`` (OpenAPI 3.1): objects as JSON Schema, then paths."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from osa_runtime import __version__
from osa_runtime.serving.protocol.requests import LONGEST_ID
from osa_runtime.serving.protocol.tensors import BYTES, DTYPES


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(optional: dict[str, Any] | None = None, **required: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": required | (optional or {})}


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
SHAPE = _list({"type": "integer", "minimum": 0})
# null means left out: clients that write every field of their objects send it
PARAMETERS = {"type": ["object", "null"], "additionalProperties": {"type": ["string", "number", "boolean"]}}
DATA = {"type": "array", "description": "the values row by row, flat or nested"}
DURATION = _object(count=COUNT, ns=COUNT)
PHASES = {"compute_input": DURATION, "compute_infer": DURATION, "compute_output": DURATION}
TENSOR = _object(name=TEXT, datatype=TEXT, shape=_list({"type": "integer", "minimum": -1}))
VALUES = {"data": DATA, "parameters": PARAMETERS}
MODEL_STATISTICS = _object(
    {"last_inference": COUNT},
    name=TEXT,
    version=TEXT,
    inference_count=COUNT,
    execution_count=COUNT,
    inference_stats=_object(PHASES, success=DURATION, fail=DURATION, queue=DURATION),
    batch_stats=_list(_object(PHASES, batch_size=COUNT)),
)

SCHEMAS: dict[str, Any] = {
    "Error": _object(error=TEXT),
    "Object": {"type": "object"},
    "ServerMetadata": _object(name=TEXT, version=TEXT, extensions=_list(TEXT)),
    "ModelMetadata": _object(
        name=TEXT, versions=_list(TEXT), platform=TEXT, inputs=_list(TENSOR), outputs=_list(TENSOR)
    ),
    "InputTensor": _object(VALUES, name=TEXT, datatype={"enum": list(DTYPES)}, shape=SHAPE),
    "InferenceRequest": _object(
        {
            "id": {"type": ["string", "null"], "maxLength": LONGEST_ID},
            "parameters": PARAMETERS,
            "outputs": _list(_object({"parameters": PARAMETERS}, name=TEXT)) | {"type": ["array", "null"]},
        },
        inputs=_list(ref("InputTensor")),
    ),
    "InferenceResponse": _object(
        {"id": TEXT},
        model_name=TEXT,
        model_version=TEXT,
        outputs=_list(_object(VALUES, name=TEXT, datatype={"enum": [*DTYPES, BYTES]}, shape=SHAPE)),
    ),
    "Statistics": _object(model_stats=_list(MODEL_STATISTICS)),
    "IndexRequest": _object({"ready": {"type": "boolean", "description": "only models that are ready"}}),
    "Index": _list(_object({"reason": TEXT}, name=TEXT, version=TEXT, state=TEXT)),
    # Models come from the disk.
    "LoadRequest": _object({"parameters": {"type": ["object", "null"], "maxProperties": 0}}),
    "UnloadRequest": _object({"parameters": PARAMETERS}),
}

INFERENCE_EXAMPLE = {
    "id": "1",
    "inputs": [{"name": "images", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.0] * 64}],
}


NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}, "description": "the model"}
VERSION = {
    "name": "version",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[1-9][0-9]*$"},
    "description": "one of its versions",
}
JSON_SIZE = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": "^[0-9]+$"},
    "description": "bytes of JSON at the start of the body; the tensors that travel as raw bytes follow",
}
ERRORS = {
    400: "malformed, or does not fit the model",
    401: "the bearer token is missing or wrong",
    403: "sent by a page of another origin, or under a name that is not this server's",
    404: "no such model or version",
    405: "no such method",
    413: "larger than the limits of this server and this model",
    422: "the model returns NaN or Inf for these inputs",
    500: "the model failed",
    503: "the queue is full, the time is over, or nothing is loaded; Retry-After says when to come back",
}


INFER, INFER_ERRORS = "/infer", (404, 413, 422, 500, 503)


class Call(NamedTuple):
    """A path and its method; ``handler`` is the name of its function in routes.py."""

    handler: str
    method: str
    path: str
    summary: str
    answer: str | None = None
    body: str | None = None
    errors: tuple[int, ...] = ()
    kind: str = "application/json"


def _of_model(path: str) -> list[Call]:
    return [
        Call("metadata", "GET", path, "Inputs, outputs and versions", "ModelMetadata", errors=(404,)),
        Call("model_ready", "GET", path + "/ready", "Readiness of the model", errors=(404,)),
        Call("config", "GET", path + "/config", "Triton's configuration of the model", "Object", errors=(404,)),
        Call("statistics", "GET", path + "/stats", "Statistics of the model", "Statistics", errors=(404,)),
        # this handler is never reached; it makes other methods a 405
        Call("absent", "POST", path + INFER, "Run the model", "InferenceResponse", "InferenceRequest", INFER_ERRORS),
    ]


LOAD, UNLOAD = "/v2/repository/models/{name}/load", "/v2/repository/models/{name}/unload"
CALLS = [
    Call("server", "GET", "/v2", "Name, version and extensions of the server", "ServerMetadata"),
    Call("live", "GET", "/v2/health/live", "Liveness of the server"),
    Call("ready", "GET", "/v2/health/ready", "Readiness of the server", errors=(503,)),
    Call("statistics", "GET", "/v2/models/stats", "Statistics of all models", "Statistics"),
    Call("index", "POST", "/v2/repository/index", "All models and their states", "Index", "IndexRequest"),
    Call("load", "POST", LOAD, "Load a model", "Object", "LoadRequest", (404, 500)),
    Call("unload", "POST", UNLOAD, "Unload a model", "Object", "UnloadRequest", (404, 500)),
    Call("metrics", "GET", "/metrics", "Metrics for Prometheus", kind="text/plain"),
    Call("description", "GET", "/openapi.json", "This description", "Object"),
    Call("page", "GET", "/", "The page for people", kind="text/html"),
    Call("details", "GET", "/details", "The data that the page shows", "Object"),
    *_of_model("/v2/models/{name}"),
    *_of_model("/v2/models/{name}/versions/{version}"),
]


@cache
def openapi() -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "osa serve",
            "version": __version__,
            "description": "The Open Inference Protocol (KServe V2) with Triton's extensions for binary tensors, "
            "classification, statistics, model configuration and the model repository.",
        },
        "paths": {call.path: _described(call) for call in CALLS},
        "components": {"schemas": SCHEMAS, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


def _described(call: Call) -> dict[str, Any]:
    details: dict[str, Any] = {"summary": call.summary, "responses": _responses(call)}
    if call.body is not None:
        details["requestBody"] = {"required": False, "content": {"application/json": {"schema": ref(call.body)}}}
    if call.path.endswith(INFER):
        _add_tensors(details)
    parameters = [parameter for parameter in (NAME, VERSION) if f"{{{parameter['name']}}}" in call.path]
    return {call.method.lower(): details, "parameters": parameters}


def _add_tensors(inference: dict[str, Any]) -> None:
    binary = {"schema": {"type": "string", "format": "binary"}}
    request, answer = inference["requestBody"], inference["responses"]["200"]
    inference["parameters"] = [JSON_SIZE]
    request["required"] = True
    request["content"]["application/json"]["example"] = INFERENCE_EXAMPLE
    request["content"]["application/octet-stream"] = answer["content"]["application/octet-stream"] = binary


def _responses(call: Call) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "done"}
    if call.answer is not None:
        success["content"] = {call.kind: {"schema": ref(call.answer)}}
    elif call.kind != "application/json":
        success["content"] = {call.kind: {"schema": {"type": "string"}}}
    responses: dict[str, Any] = {"200": success}
    for status in sorted({400, 401, 403, 405, *call.errors}):
        content = {"application/json": {"schema": ref("Error")}}
        responses[str(status)] = {"description": ERRORS[status], "content": content}
    if 503 in call.errors and call.answer is None:
        responses["503"] = {"description": ERRORS[503]}  # health checks have no body
    return responses
