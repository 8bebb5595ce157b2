"""ONNX models in runtimes other than ONNX Runtime, to compare their answers: OpenVINO, tract, onnx's evaluator, Node.

Nothing here is for speed: a session checks its inputs as every other does, and hands them over as they are.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import threading
from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from osa_runtime.errors import ArtifactError, DeviceError, InputError, MissingDependencyError, OsaError, RunError
from osa_runtime.interface import Interface
from osa_runtime.runtime.device import CPU, LoadSettings, Placement
from osa_runtime.runtime.input_checks import Array
from osa_runtime.runtime.session import Session, Source

NODE_SCRIPT = Path(__file__).with_name("node_session.js")


class OtherSession(Session):
    """A model in a runtime on the CPU. Calls are one at a time: not all of these runtimes take several at once."""

    package: str  # the Python package of the runtime
    runtime: str  # its name for people

    def __init__(self, source: Source, settings: LoadSettings) -> None:
        if settings.device != CPU:
            raise DeviceError(f"{self.runtime} is run on the CPU only here, not on {settings.device}.")
        if importlib.util.find_spec(self.package) is None:
            raise MissingDependencyError(f"{self.runtime} is not installed; install the Python package {self.package}.")
        interface = source.declared or _interface_of(source.path)
        self._names = tuple(spec.name for spec in interface.outputs)
        self._lock = threading.Lock()
        try:
            self._model, version = self._start(source.path, interface, settings.threads)
        except OsaError:
            raise
        except Exception as error:
            raise ArtifactError(f"{self.runtime} cannot load {source.path}: {_reason(error)}") from error
        super().__init__(source, interface, Placement(str(CPU), str(CPU), f"{self.runtime} {version}"))

    def _execute(self, arrays: dict[str, Array]) -> dict[str, Array]:
        try:
            with self._lock:
                values = self._answer(arrays)
        except Exception as error:
            raise RunError(f"{self.runtime} failed while it ran {self.path}: {_reason(error)}") from error
        return dict(zip(self._names, values, strict=True))

    @abstractmethod
    def _start(self, path: Path, interface: Interface, threads: int | None) -> tuple[Any, str]:
        """The loaded model and the version of the runtime."""

    @abstractmethod
    def _answer(self, arrays: dict[str, Array]) -> list[Array]:
        """The outputs in the order of the interface, as arrays of their own."""


class OpenVinoSession(OtherSession):
    package, runtime = "openvino", "OpenVINO"

    def _start(self, path: Path, _: Interface, threads: int | None) -> tuple[Any, str]:
        openvino = importlib.import_module("openvino")
        # By default it may choose bfloat16, and rounds to 8 bits what meets 8-bit weights.
        settings = {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_PRECISION_HINT": "f32"}
        settings |= {} if threads is None else {"INFERENCE_NUM_THREADS": str(threads)}
        return openvino.Core().compile_model(str(path), "CPU", settings), openvino.__version__.partition("-")[0]

    def _answer(self, arrays: dict[str, Array]) -> list[Array]:
        found = self._model({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        return [np.array(found[name]) for name in self._names]


class TractSession(OtherSession):
    package, runtime = "tract", "tract"

    def _start(self, path: Path, interface: Interface, _: int | None) -> tuple[Any, str]:
        tract = importlib.import_module("tract")
        model = tract.onnx().load(str(path))
        inputs = [model.input_name(index) for index in range(model.input_count())]
        if sorted(inputs) != sorted(spec.name for spec in interface.inputs):
            raise ArtifactError(f"it has the inputs {', '.join(inputs)}")
        self._inputs = inputs
        return model.into_model().into_runnable(), tract.version()

    def _answer(self, arrays: dict[str, Array]) -> list[Array]:
        found = self._model.run([np.ascontiguousarray(arrays[name]) for name in self._inputs])
        return [np.array(tensor.to_numpy()) for tensor in found]


class ReferenceSession(OtherSession):
    package, runtime = "onnx", "onnx's ReferenceEvaluator"

    def _start(self, path: Path, _: Interface, __: int | None) -> tuple[Any, str]:
        onnx = importlib.import_module("onnx")
        return importlib.import_module("onnx.reference").ReferenceEvaluator(str(path)), onnx.__version__

    def _answer(self, arrays: dict[str, Array]) -> list[Array]:
        with np.errstate(all="ignore"):  # NaN and Inf are among the inputs that are tried
            return [np.asarray(x) for x in self._model.run(list(self._names), dict(arrays))]


class NodeSession(OtherSession):
    """onnxruntime-node in a process of its own, found from the working folder or ``NODE_PATH``.

    A request and an answer are one line of JSON, followed by the bytes of the tensors.
    """

    package, runtime = "numpy", "onnxruntime-node"

    def _start(self, path: Path, _: Interface, __: int | None) -> tuple[Any, str]:
        node = shutil.which("node")
        if node is None:
            raise MissingDependencyError("onnxruntime-node needs Node.js, and node is not on the path.")
        command = [node, str(NODE_SCRIPT), str(path.absolute())]
        found = [os.environ["NODE_PATH"]] if os.environ.get("NODE_PATH") else []
        folders = [*found, *(str(folder / "node_modules") for folder in (Path.cwd(), *Path.cwd().parents))]
        environment = os.environ | {"NODE_PATH": os.pathsep.join(folders)}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        self._process = process
        try:
            return process, self._read()[0]["version"]
        except OsaError as error:
            self._end()
            if not isinstance(error, RunError):
                raise
            raise ArtifactError(f"{self.runtime} cannot load {path}: {error}") from error

    def _answer(self, arrays: dict[str, Array]) -> list[Array]:
        tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        described = [
            {"name": name, "dtype": array.dtype.name, "shape": array.shape, "size": array.nbytes}
            for name, array in tensors.items()
        ]
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(described).encode() + b"\n")
        for array in tensors.values():
            self._process.stdin.write(array.tobytes())
        self._process.stdin.flush()
        answer, values = self._read()
        return [values[answer["names"].index(name)] for name in self._names]

    def _read(self) -> tuple[dict[str, Any], list[Array]]:
        stream = self._process.stdout
        assert stream is not None
        line = stream.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the process ended"}
        if "missing" in answer:
            raise MissingDependencyError(
                f"{answer['missing']}; run `npm install onnxruntime-node` here, or set NODE_PATH to a folder with it."
            )
        if "error" in answer:
            raise RunError(str(answer["error"]))
        values = [
            np.frombuffer(bytearray(stream.read(tensor["size"])), tensor["dtype"]).reshape(tensor["shape"])
            for tensor in answer.get("tensors", ())
        ]
        return answer, values

    def close(self) -> None:
        super().close()
        self._end()

    def _end(self) -> None:
        """The process ends when its input does."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()


RUNTIMES: dict[str, type[OtherSession]] = {
    "openvino": OpenVinoSession,
    "tract": TractSession,
    "reference": ReferenceSession,
    "ort-node": NodeSession,
}


def session_in(runtime: str, source: Source, settings: LoadSettings) -> Session:
    if runtime not in RUNTIMES:
        raise InputError(f"runtime={runtime!r}: expected one of {', '.join(RUNTIMES)}.")
    if source.format != "onnx":
        raise InputError(f"runtime={runtime!r} runs ONNX models, and {source.path} is {source.format}.")
    if settings.profile is not None or settings.count_squarings:
        raise InputError(f"runtime={runtime!r} has neither a profile nor a count of squarings; leave them out.")
    return RUNTIMES[runtime](source, settings)


def _interface_of(path: Path) -> Interface:
    if importlib.util.find_spec("onnx") is None:
        raise MissingDependencyError(f"The inputs of {path} are not known without a manifest or the package onnx.")
    files = importlib.import_module("osa_runtime.onnx_files")
    model = files.read_onnx(path)
    return Interface(files.input_specs(model), files.output_specs(model))


def _reason(error: BaseException) -> str:
    text = str(error).partition("Stack backtrace")[0]  # tract shows its own
    return " ".join(text.split())[:600] or type(error).__name__
