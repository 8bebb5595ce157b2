"""The objects that REST takes and gives, as JSON Schema."""

from __future__ import annotations

from typing import Any

from osa_runtime.serving.datatypes import BYTES, DTYPES


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
SHAPE = _list({"type": "integer", "minimum": 0})
# null is taken for what is left out: clients that write every field of their objects send it
PARAMETERS = {"type": ["object", "null"], "additionalProperties": {"type": ["string", "number", "boolean"]}}
DATA = {"type": "array", "description": "the values row by row, flat or nested"}
DURATION = _object(("count", "ns"), count=COUNT, ns=COUNT)
PHASES = {"compute_input": DURATION, "compute_infer": DURATION, "compute_output": DURATION}
TENSOR = _object(
    ("name", "datatype", "shape"), name=TEXT, datatype=TEXT, shape=_list({"type": "integer", "minimum": -1})
)

SCHEMAS: dict[str, Any] = {
    "Error": _object(("error",), error=TEXT),
    "Object": {"type": "object"},
    "ServerMetadata": _object(("name", "version", "extensions"), name=TEXT, version=TEXT, extensions=_list(TEXT)),
    "ModelMetadata": _object(
        ("name", "versions", "platform", "inputs", "outputs"),
        name=TEXT,
        versions=_list(TEXT),
        platform=TEXT,
        inputs=_list(TENSOR),
        outputs=_list(TENSOR),
    ),
    "InputTensor": _object(
        ("name", "datatype", "shape"),
        name=TEXT,
        datatype={"enum": list(DTYPES)},
        shape=SHAPE,
        data=DATA,
        parameters=PARAMETERS,
    ),
    "InferenceRequest": _object(
        ("inputs",),
        id={"type": "string", "maxLength": 1024},
        parameters=PARAMETERS,
        inputs=_list(ref("InputTensor")),
        outputs=_list(_object(("name",), name=TEXT, parameters=PARAMETERS)) | {"type": ["array", "null"]},
    ),
    "InferenceResponse": _object(
        ("model_name", "model_version", "outputs"),
        id=TEXT,
        model_name=TEXT,
        model_version=TEXT,
        outputs=_list(
            _object(
                ("name", "datatype", "shape"),
                name=TEXT,
                datatype={"enum": [*DTYPES, BYTES]},
                shape=SHAPE,
                data=DATA,
                parameters=PARAMETERS,
            )
        ),
    ),
    "Statistics": _object(
        ("model_stats",),
        model_stats=_list(
            _object(
                ("name", "version", "inference_count", "execution_count", "inference_stats", "batch_stats"),
                name=TEXT,
                version=TEXT,
                last_inference=COUNT,
                inference_count=COUNT,
                execution_count=COUNT,
                inference_stats=_object(
                    ("success", "fail", "queue"), success=DURATION, fail=DURATION, queue=DURATION, **PHASES
                ),
                batch_stats=_list(_object(("batch_size",), batch_size=COUNT, **PHASES)),
            )
        ),
    ),
    "IndexRequest": _object((), ready={"type": "boolean", "description": "only models that are ready"}),
    "Index": _list(_object(("name", "version", "state"), name=TEXT, version=TEXT, state=TEXT, reason=TEXT)),
    "LoadRequest": _object(
        (), parameters={"type": ["object", "null"], "maxProperties": 0}
    ),  # models come from the disk
    "UnloadRequest": _object((), parameters=PARAMETERS),
}

INFERENCE_EXAMPLE = {
    "id": "1",
    "inputs": [{"name": "images", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.0] * 64}],
}
