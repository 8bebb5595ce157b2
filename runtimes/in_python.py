"""Run a plan in a runtime that has a Python interface: ``in_python.py RUNTIME PLAN``.

Only the standard library and NumPy are imported here; each environment has its one runtime. Prints the version, and
for each call its number and its seconds, or why it failed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Feeds = dict[str, Any]
Run = Callable[[Feeds], Any]
REPEATS = 5


def onnxruntime(path: Path, _: Feeds) -> Run:
    options = importlib.import_module("onnxruntime").SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = importlib.import_module("onnxruntime").InferenceSession(path, options, ["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)[0]


def product(runtime: str) -> Callable[[Path, Feeds], Run]:
    """A runtime of ``osa compare --runtime``."""

    def load(path: Path, _: Feeds) -> Run:
        session = importlib.import_module("osa_runtime").load(path.parent, runtime=runtime, threads=1)
        return lambda feeds: next(iter(session.run(feeds).values()))

    return load


def compiled(target: str) -> Callable[[Path, Feeds], Run]:
    """A target whose own package compiles the program of torch.export."""

    def load(path: Path, feeds: Feeds) -> Run:
        torch = importlib.import_module("torch")
        torch.set_num_threads(1)
        compiler = importlib.import_module("osa_runtime.exporters.compiled")
        chosen = importlib.import_module("osa_runtime.targets").target_named(target)
        run = compiler.compile_program(path, chosen, [torch.from_numpy(x) for x in feeds.values()])
        return lambda feeds: run([torch.from_numpy(x) for x in feeds.values()])[0]

    return load


def iree(path: Path, _: Feeds) -> Run:
    compiler, runtime = (importlib.import_module(f"iree.{part}") for part in ("compiler", "runtime"))
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "model.mlir")
        command = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(path), "-o", str(text)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        program = compiler.compile_file(
            str(text), target_backends=["llvm-cpu"], extra_args=["--iree-llvmcpu-target-cpu=host"]
        )
    config = runtime.Config("local-sync")
    module = runtime.load_vm_module(runtime.VmModule.copy_buffer(config.vm_instance, program), config)
    function = next(getattr(module, name) for name in module.vm_module.function_names if "$" not in name)
    return lambda feeds: np.asarray(function(*feeds.values()))


def tvm(path: Path, feeds: Feeds) -> Run:
    tvm, onnx = importlib.import_module("tvm"), importlib.import_module("onnx")
    frontend = importlib.import_module("tvm.relax.frontend.onnx")
    shapes = {name: list(x.shape) for name, x in feeds.items()}
    program = frontend.from_onnx(onnx.load(path), shapes, {name: str(x.dtype) for name, x in feeds.items()})
    relax = importlib.import_module("tvm.relax")
    machine = relax.VirtualMachine(tvm.compile(program, target="llvm"), tvm.cpu())

    def run(feeds: Feeds) -> Any:
        found = machine["main"](*(tvm.runtime.tensor(x) for x in feeds.values()))
        return (found if hasattr(found, "numpy") else found[0]).numpy()

    return run


LOADERS: dict[str, tuple[str, Callable[[Path, Feeds], Run]]] = {
    "onnxruntime": ("onnxruntime", onnxruntime),
    "openvino": ("openvino", product("openvino")),
    "tract": ("tract", product("tract")),
    "reference": ("onnx", product("reference")),
    "ort-node": ("", product("ort-node")),
    "iree": ("iree-base-compiler", iree),
    "tvm": ("apache-tvm", tvm),
    "executorch": ("executorch", compiled("executorch")),
    "litert": ("litert-torch", compiled("litert")),
    "aoti": ("torch", compiled("aoti")),
}


def version_in_node(package: str) -> str:
    description = Path(os.environ["NODE_PATH"], package, "package.json")
    return str(json.loads(description.read_text())["version"])


def read_feeds(fields: list[str]) -> Feeds:
    feeds = {}
    for field in fields:
        name, kind, shape, file = field.split(":", 3)
        feeds[name] = np.fromfile(file, kind).reshape([int(n) for n in shape.split("x")])
    return feeds


def main(name: str, plan: Path) -> None:
    package, load = LOADERS[name]
    say("version", importlib.metadata.version(package) if package else version_in_node("onnxruntime-node"))
    loaded: tuple[object, Run | Exception] | None = None
    for index, line in enumerate(plan.read_text().splitlines()):
        model, answer, *fields = line.split("\t")
        feeds = read_feeds(fields)
        try:
            key = model, [x.shape for x in feeds.values()] if name == "tvm" else []  # which compiles for one size
            if loaded is None or loaded[0] != key:
                loaded = key, attempt(load, Path(model), feeds)
            if isinstance(loaded[1], Exception):
                raise loaded[1]
            np.ascontiguousarray(loaded[1](feeds), np.float32).tofile(answer)
            say("ok", index, min(timed(loaded[1], feeds) for _ in range(REPEATS)))
        except Exception as error:  # noqa: BLE001  # whatever a runtime raises goes into its row
            say("error", index, " ".join(f"{type(error).__name__}: {error}".split())[:500])


def attempt(load: Callable[[Path, Feeds], Run], path: Path, feeds: Feeds) -> Run | Exception:
    """A model that cannot be loaded is not tried again for each of its calls."""
    try:
        return load(path, feeds)
    except Exception as error:  # noqa: BLE001
        return error


def timed(run: Run, feeds: Feeds) -> float:
    started = time.perf_counter()
    run(feeds)
    return time.perf_counter() - started


def say(*words: object) -> None:
    print(*words, sep="\t", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
