"""``osa serve --engine ray`` as users start and stop it."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import osa_runtime
from inference_load import InferenceLoad
from ray_cluster import ONLY_WITH_ALL, wait_for_the_end
from small_models import feeds

Exported = Callable[[str, str], Path]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("alone"), ONLY_WITH_ALL]


def start(python: Path, environment: dict[str, str], *arguments: str | Path) -> subprocess.Popen[str]:
    command = [str(python), "-m", "osa_runtime.cli", "serve", *map(str, arguments), "--engine", "ray"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=ONLY_WITH_ALL)], ids=["SIGTERM", "Ctrl-C"]
)
def test_it_serves_until_a_signal_and_ends_with_0(
    number: signal.Signals, exported: Exported, python_with_ray: Path, ray_environment: dict[str, str]
) -> None:
    artifact = exported("vit", "onnx")
    image = feeds("vit", 1)["images"].astype(np.float32)
    with osa_runtime.load(artifact) as session:
        expected = session.run({"images": image})["logits"].astype(np.float32)
    process = start(python_with_ray, ray_environment, artifact, "--http-port", "0", "--grpc-port", "-1")
    assert process.stdout is not None
    assert process.stdout.readline() == "vit-onnx (version 1) on cpu, replicas: 1\n"
    address = re.fullmatch(r"REST and the page: http://127\.0\.0\.1:(\d+)\n", process.stdout.readline())
    assert address is not None
    with InferenceLoad(int(address[1]), "vit-onnx", image, expected) as load:
        load.wait_for(100)
    process.send_signal(number)
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, output) == (0, ""), errors
    load.check_perfect()
    assert "Traceback" not in errors
    wait_for_the_end()


def test_a_missing_artifact_is_an_error_and_not_a_wait(
    tmp_path: Path, python_with_ray: Path, ray_environment: dict[str, str]
) -> None:
    process = start(python_with_ray, ray_environment, tmp_path / "nowhere")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3
    assert errors.startswith("error: failed to load 'nowhere'")


def test_a_ray_that_is_not_there_is_an_error_and_not_a_wait(
    exported: Exported, python_with_ray: Path, ray_environment: dict[str, str]
) -> None:
    environment = ray_environment | {"RAY_ADDRESS": "127.0.0.1:6555"}
    process = start(python_with_ray, environment, exported("vit", "onnx"))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "RAY_ADDRESS is 127.0.0.1:6555, and no Ray can be joined there" in errors
