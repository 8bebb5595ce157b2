"""Descriptions of the server and its models in the protocol's terms, and example calls of a model to copy."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from osa_runtime import __version__
from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.sample_inputs import usual_sizes
from osa_runtime.serving.engine.engine import Engine
from osa_runtime.serving.engine.model import ServedModel
from osa_runtime.serving.engine.statistics import Duration, ModelStatistics, Phases
from osa_runtime.serving.guard import VARIABLE
from osa_runtime.serving.protocol.tensors import PROTOCOL_NAMES
from osa_runtime.serving.refusals import NotFound

PLATFORM = "onnxruntime_onnx"
EXTENSIONS = (
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
    "binary_tensor_data",
)


def server_metadata(engine: Engine) -> dict[str, Any]:
    extensions = [name for name in EXTENSIONS if name not in engine.lacks]
    return {"name": "osa-runtime", "version": __version__, "extensions": extensions}


def model_metadata(engine: Engine, model: ServedModel) -> dict[str, Any]:
    versions = [other.version_text for other in engine.repository.served() if other.name == model.name]
    return {
        "name": model.name,
        "versions": versions,
        "platform": PLATFORM,
        "inputs": _tensors(model.interface.inputs),
        "outputs": _tensors(model.interface.outputs),
    }


def _tensors(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    return [{"name": s.name, "datatype": PROTOCOL_NAMES[s.dtype], "shape": _sizes(s.shape)} for s in specs]


def _sizes(shape: Sequence[int | str]) -> list[int]:
    return [axis if isinstance(axis, int) else -1 for axis in shape]


def model_config(engine: Engine, model: ServedModel) -> dict[str, Any]:
    delay, parameters = int(engine.settings.batching.max_delay * 1e6), model.manifest.configuration_parameters()
    config = configuration(model.name, model.interface, model.max_batch, parameters, delay)
    for entry in config["input"]:
        if entry["name"] == model.interface.mask:
            entry["optional"] = True
    return config | {
        "platform": PLATFORM,
        "backend": "onnxruntime",
        "version_policy": {"latest": {"num_versions": engine.settings.versions}},
        "default_model_filename": "model.onnx",
    }


def configuration(
    name: str, interface: Interface, max_batch: int, parameters: Mapping[str, str], delay_us: int
) -> dict[str, Any]:
    """Triton's configuration of a model, as far as the model decides it. With batching, dims leave the batch out."""
    config: dict[str, Any] = {
        "name": name,
        "max_batch_size": max_batch,
        "input": [_configured(spec, max_batch) for spec in interface.inputs],
        "output": [_configured(spec, max_batch) for spec in interface.outputs],
        "parameters": {key: {"string_value": text} for key, text in parameters.items()},
    }
    return config | ({"dynamic_batching": {"max_queue_delay_microseconds": delay_us}} if max_batch else {})


def _configured(spec: TensorSpec, max_batch: int) -> dict[str, Any]:
    dims = _sizes(spec.shape)[1 if max_batch else 0 :]
    entry = {"name": spec.name, "data_type": f"TYPE_{PROTOCOL_NAMES[spec.dtype]}", "dims": dims or [1]}
    # Triton does not support empty dims: a tensor with only the batch axis is [1] to clients.
    return entry | ({"reshape": {"shape": []}} if max_batch and not dims else {})


async def statistics(engine: Engine, name: str = "", version: str = "") -> dict[str, Any]:
    """The statistics of one model, of one version, or of all that are loaded."""
    if name:
        model = engine.repository.find(name, version)  # refuses what is unknown
        keys = [(m.name, m.version) for m in engine.repository.served() if m.name == name]
        keys = [(model.name, model.version)] if version else keys
    else:
        keys = [(m.name, m.version) for m in engine.repository.served()]
    if version and not name:
        raise NotFound("A version was given without a model; name the model, too.")
    figures = await engine.totals()
    return {"model_stats": [_model_statistics(*key, figures.page(key)) for key in keys]}


def _model_statistics(name: str, version: int, book: ModelStatistics) -> dict[str, Any]:
    zero = _duration(Duration())
    return {
        "name": name,
        "version": str(version),
        "last_inference": int(book.last_inference * 1e3),
        "inference_count": book.rows,
        "execution_count": book.executions,
        "inference_stats": {
            "success": _duration(book.success),
            "fail": _duration(book.fail),
            "queue": _duration(book.queue),
            **_phases(book.requests),
            "cache_hit": zero,
            "cache_miss": zero,
        },
        "batch_stats": [{"batch_size": rows, **_phases(batch)} for rows, batch in sorted(book.batches.items())],
    }


def _phases(phases: Phases) -> dict[str, Any]:
    steps = {"compute_input": phases.join, "compute_infer": phases.run, "compute_output": phases.split}
    return {step: _duration(Duration(phases.count, seconds)) for step, seconds in steps.items()}


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": int(duration.seconds * 1e9)}


ORIGIN = "{origin}"  # the page puts in its own address
SHORT = 128  # numbers that are written out
TOKENS = 4  # of a dynamic axis that is not the batch


def example_inputs(interface: Interface) -> list[dict[str, Any]]:
    """The protocol's fields of each input; ``value`` stands for the data."""
    sizes = usual_sizes(interface, length=TOKENS)
    return [
        {
            "name": spec.name,
            "datatype": PROTOCOL_NAMES[spec.dtype],
            "shape": spec.sized(sizes),
            "value": _value(spec, interface),
        }
        for spec in interface.inputs
    ]


def example_calls(name: str, interface: Interface, origin: str = ORIGIN, *, token: bool = False) -> dict[str, str]:
    """Example calls as shell lines. Python generates long data, so that the lines stay readable."""
    inputs = example_inputs(interface)
    url = f"{origin}/v2/models/{quote(name)}/infer"
    spelled = '{"inputs": [' + ", ".join(map(_spelled, inputs)) + "]}"
    return {"curl": _curl(url, inputs, spelled, token), "python": _python(url, spelled, token)}


def _curl(url: str, inputs: Sequence[Mapping[str, Any]], spelled: str, token: bool) -> str:
    header = f' -H "Authorization: Bearer ${VARIABLE}"' if token else ""
    if sum(math.prod(entry["shape"]) for entry in inputs) > SHORT:
        made = shlex.quote(f"import json; print(json.dumps({spelled}))")
        return f"python3 -c {made} | curl {url}{header} -d @-"
    fields = ("name", "datatype", "shape")
    body = [
        {key: entry[key] for key in fields} | {"data": [entry["value"]] * math.prod(entry["shape"])} for entry in inputs
    ]
    return f"curl {url}{header} -d {shlex.quote(json.dumps({'inputs': body}, separators=(',', ':')))}"


def _python(url: str, spelled: str, token: bool) -> str:
    header = f', {{"Authorization": "Bearer " + os.environ["{VARIABLE}"]}}' if token else ""
    code = (
        f"import json, os, urllib.request as web; request = {spelled}; "
        f"print(web.urlopen(web.Request({json.dumps(url)}, json.dumps(request).encode(){header})).read().decode())"
    )
    return f"python3 -c {shlex.quote(code)}"


def _spelled(entry: Mapping[str, Any]) -> str:
    """A Python expression of an input, with its data as a product."""
    fields = ", ".join(f'"{key}": {json.dumps(entry[key])}' for key in ("name", "datatype", "shape"))
    return f'{{{fields}, "data": [{entry["value"]!r}] * {math.prod(entry["shape"])}}}'


def _value(spec: TensorSpec, interface: Interface) -> bool | float | int:
    if spec.dtype == "bool":
        return True
    return 0.5 if spec.dtype.startswith("float") else interface.ids(spec.name)[1]
