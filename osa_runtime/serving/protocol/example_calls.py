"""Calls of a served model, ready to be copied: for curl and for Python, with the model's own inputs."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from osa_runtime.artifact import TensorSpec
from osa_runtime.interface import Interface
from osa_runtime.sample_inputs import usual_sizes
from osa_runtime.serving.guard import VARIABLE
from osa_runtime.serving.protocol.tensors import PROTOCOL_NAMES

ORIGIN = "{origin}"  # the page puts in its own address
SHORT = 128  # numbers that are written out
TOKENS = 4  # of a dynamic axis that is not the batch


def example_inputs(interface: Interface) -> list[dict[str, Any]]:
    """Of each input its protocol fields; ``value`` stands for data of as many as the shape has."""
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
    """One line for a shell each. Long data is made by Python, so that the line stays one that can be read."""
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
