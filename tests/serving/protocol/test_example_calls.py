"""The lines that `osa serve` prints for a shell are right for any model: they are run here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.serving.protocol.descriptions import example_calls, example_inputs
from serving_process import ServerProcess

ODD = 'it\'s "$HOME" `ls` \\'


def test_the_printed_lines_are_answered(server: ServerProcess) -> None:
    for name in ("vit", "encoder"):
        details = json.loads(_shell(f"curl -s {server.url}/details"))
        model = next(entry for entry in details["models"] if entry["name"] == name)
        answers = [json.loads(_shell(line.replace("{origin}", server.url))) for line in model["calls"].values()]
        assert [answer["outputs"][0]["name"] for answer in answers] == ["logits", "logits"]
        assert answers[0]["outputs"] == answers[1]["outputs"]


@pytest.mark.parametrize("size", [3, 3000], ids=["short", "long"])
def test_odd_names_survive_the_shell(size: int) -> None:
    interface = Interface((TensorSpec(ODD, "float32", ("batch", size)),), ())
    calls = example_calls("m", interface, "http://127.0.0.1:1")
    echoed = _shell(
        calls["curl"].replace("curl http://127.0.0.1:1/v2/models/m/infer -d", "printf %s").replace("| printf %s @-", "")
    )
    assert json.loads(echoed)["inputs"][0] == {
        "name": ODD,
        "datatype": "FP32",
        "shape": [1, size],
        "data": [0.5] * size,
    }
    code = _shell(calls["python"].replace("python3 -c", "printf %s"))
    compile(code, "line", "exec")


def test_sizes_and_values_are_ones_that_the_model_takes() -> None:
    inputs = (TensorSpec("ids", "int64", ("batch", "tokens")), TensorSpec("mask", "bool", ("batch", "tokens")))
    ranges = {"batch": {"min": 2}, "tokens": {"min": 1, "max": 3}}
    interface = Interface(inputs, (), ranges, values={"ids": {"min": 5, "max": 9}})
    ids, mask = example_inputs(interface)
    assert (ids["shape"], ids["value"]) == ([2, 3], 9)
    assert (mask["shape"], mask["value"]) == ([2, 3], True)


def test_a_token_is_taken_from_the_environment() -> None:
    interface = Interface((TensorSpec("x", "float32", (2,)),), ())
    for line in example_calls("m", interface, "http://h", token=True).values():
        assert "OSA_SERVE_TOKEN" in line


def _shell(line: str) -> str:
    line = line.replace("python3", sys.executable)
    return subprocess.run(["bash", "-c", line], check=True, capture_output=True, text=True, cwd=Path("/")).stdout
