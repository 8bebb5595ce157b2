"""How each server is started: on the same model files, with one ONNX Runtime thread per model."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from osa_runtime.packaging.triton_config import TritonSettings
from osa_runtime.packaging.triton_repository import package_triton
from serving_load.contender import HERE, Contender
from serving_load.environments import Missing, environment

# The code that installs and starts a real tritonserver is that of the packaging tests.
sys.path.append(str(HERE.parent.parent / "tests"))
from triton_process import TritonProcess, TritonUnavailable, triton_home

DELAY_US = 1000
ADAPTIVE = {"max_batch_size": 16, "max_batch_time": 0.003}

Start = Callable[[str, Sequence[Path]], Contender]


def start_ours(name: str, folders: Sequence[Path], *flags: str) -> Contender:
    contender = Contender(name)
    program = Path(sys.executable).with_name("osa")
    contender.launch(
        lambda http, grpc: [
            *(program, "serve", *folders, "--threads", "1", "--log-level", "warning", *flags),
            *("--http-port", str(http), "--grpc-port", str(grpc)),
        ]
    )
    return contender


def start_triton(name: str, folders: Sequence[Path], delay_us: int = 0) -> Contender:
    """The python backend with our session, as `osa package triton --backend python` writes it."""
    try:
        triton_home()
    except TritonUnavailable as reason:
        raise Missing(str(reason)) from reason
    contender = Contender(name)
    home = contender.closing.enter_context(tempfile.TemporaryDirectory())
    settings = TritonSettings(backend="python", threads=1, max_delay_us=delay_us)
    package_triton(folders, Path(home) / "models", settings)
    try:
        server = contender.closing.enter_context(TritonProcess(Path(home) / "models"))
    except AssertionError as error:
        contender.closing.close()
        raise Missing(str(error)[-500:]) from error
    http, grpc = (int(address.rpartition(":")[2]) for address in (server.http, server.grpc))
    contender.add(server.process.pid, http, grpc)
    return contender


def start_kserve(name: str, folders: Sequence[Path]) -> Contender:
    python = environment("kserve") / "python"
    contender = Contender(name)
    contender.launch(lambda http, grpc: [python, HERE / "kserve_server.py", str(http), str(grpc), *map(str, folders)])
    return contender


def start_mlserver(name: str, folders: Sequence[Path], batching: Mapping[str, float] | None = None) -> Contender:
    """In one process, as all others are; ``batching`` are its settings of adaptive batching."""
    program = environment("mlserver") / "mlserver"
    contender = Contender(name)
    home = Path(contender.closing.enter_context(tempfile.TemporaryDirectory()))
    for folder in folders:
        (home / folder.name).mkdir()
        settings: dict[str, Any] = {"name": folder.name, "implementation": "mlserver_runtime.OnnxModel"}
        settings |= {"parameters": {"uri": str(folder)}, **(batching or {})}
        (home / folder.name / "model-settings.json").write_text(json.dumps(settings))

    def command(http: int, grpc: int) -> list[str | Path]:
        ports = {"http_port": http, "grpc_port": grpc, "host": "127.0.0.1", "metrics_endpoint": None}
        (home / "settings.json").write_text(json.dumps(ports | {"debug": False, "parallel_workers": 0}))
        return [program, "start", home]

    contender.launch(command)
    return contender


STARTS: dict[str, Start] = {
    "ours": start_ours,
    "ours, no batching": lambda name, folders: start_ours(name, folders, "--max-batch", "1"),
    "ours, 2 workers": lambda name, folders: start_ours(name, folders, "--workers", "2"),
    "triton": start_triton,
    "triton, 1 ms delay": lambda name, folders: start_triton(name, folders, DELAY_US),
    "kserve": start_kserve,
    "mlserver": start_mlserver,
    "mlserver, batching": lambda name, folders: start_mlserver(name, folders, ADAPTIVE),
}
