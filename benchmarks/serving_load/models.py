"""The models that are served, and questions with known answers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from osa_runtime import Session, load
from osa_runtime.artifact import Artifact, Manifest, TensorSpec, describe_files
from osa_runtime.atomic import atomic_folder
from serving_load.messages import Array, Question

WIDTH, CLASSES = 64, 10
IMAGE = (3, 224, 224)
QUESTIONS = 16


def write_mlp(folder: Path) -> Path:
    """A model that runs in some microseconds, so that what is measured is the server."""
    random = np.random.default_rng(0)
    shapes = {"w1": (WIDTH, WIDTH), "w2": (WIDTH, CLASSES)}
    weights = {name: random.standard_normal(shape, np.float32) / 8 for name, shape in shapes.items()}
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("Relu", ["h"], ["a"]),
        helper.make_node("MatMul", ["a", "w2"], ["y"]),
    ]
    return _write(folder, nodes, ("batch", WIDTH), ("batch", CLASSES), weights)


def write_mean(folder: Path) -> Path:
    """The mean of each channel of an image: next to no work on as many bytes as a vision transformer takes."""
    node = helper.make_node("GlobalAveragePool", ["x"], ["y"])
    return _write(folder, [node], ("batch", *IMAGE), ("batch", IMAGE[0], 1, 1), {})


def _write(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    taken: tuple[int | str, ...],
    given: tuple[int | str, ...],
    weights: Mapping[str, Array],
) -> Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, taken)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, given)
    constants = [numpy_helper.from_array(weight, name) for name, weight in weights.items()]
    graph = helper.make_graph(nodes, folder.name, [x], [y], constants)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)])
    with atomic_folder(folder) as out:
        onnx.save(model, out / "model.onnx")
        inputs, outputs = (TensorSpec("x", "float32", taken),), (TensorSpec("y", "float32", given),)
        count = sum(weight.size for weight in weights.values())
        manifest = Manifest("onnx", inputs, outputs, count, opset=18, files=describe_files(out))
        (out / "manifest.json").write_text(manifest.to_json())
    return folder


class Served:
    """A model under the name of its folder, with a session in this process to compare with."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name
        self._session: Session = load(folder, threads=1)
        self.questions = [self._question(seed) for seed in range(QUESTIONS)]

    def _question(self, seed: int) -> Question:
        (spec,) = Artifact.open(self.folder).manifest.inputs
        shape = [1, *(axis for axis in spec.shape[1:] if isinstance(axis, int))]
        array = np.random.default_rng(seed).standard_normal(shape, np.float32)
        (answer,) = self._session.run({spec.name: array}).values()
        return Question(self.name, spec.name, array, answer)

    def run_time(self, seconds: float) -> float:
        """Seconds that one run takes in this process: the median."""
        feeds = [{question.input: question.array} for question in self.questions]
        times: list[float] = []
        end = time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            self._session.run(feeds[len(times) % len(feeds)])
            times.append(time.perf_counter() - start)
        return statistics.median(times)
