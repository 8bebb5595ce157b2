"""The servers, each in processes of its own: on the same model files, with one ONNX Runtime thread per model."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from osa_runtime.benchmarking.machine import ContentionWatch
from osa_runtime.packaging.triton_config import TritonSettings
from osa_runtime.packaging.triton_repository import package_triton

HERE = Path(__file__).resolve().parent
# The code that installs servers, and starts a real tritonserver, is that of the packaging tests.
sys.path.append(str(HERE.parent.parent / "tests"))
from triton_process import ServerUnavailable, TritonProcess, free_ports, install, triton_home  # noqa: E402

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "osa-benchmarks"
PINS = {
    "kserve": ("kserve==0.21.0", "onnxruntime==1.31.1"),
    "mlserver": ("mlserver==1.7.1", "onnxruntime==1.31.1"),
}
START_SECONDS, STOP_SECONDS = 120, 30
DELAY_US = 1000
ADAPTIVE = {"max_batch_size": 16, "max_batch_time": 0.003}

Command = Callable[[int, int], Sequence[str | Path]]  # of the HTTP and the gRPC port


class Contender:
    """``http`` and ``grpc`` are its addresses; leaving ``closing`` stops it."""

    def __init__(self, name: str) -> None:
        self.name, self.closing = name, contextlib.ExitStack()

    def found_at(self, process: int, http: int, grpc: int) -> Self:
        self.process, self.http, self.grpc = process, ("127.0.0.1", http), ("127.0.0.1", grpc)
        return self

    def launch(self, command: Command) -> Self:
        http, grpc = free_ports(2)
        log = self.closing.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115 - closed with the rest
        variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
        child = subprocess.Popen(command(http, grpc), stdout=log, stderr=subprocess.STDOUT, env=variables)
        self.closing.callback(_stop, child)
        end = time.monotonic() + START_SECONDS
        while not _is_ready(http):
            if child.poll() is not None or time.monotonic() > end:
                log.seek(0)
                reason = log.read().strip()[-500:]
                self.closing.close()
                raise ServerUnavailable(f"{self.name} did not start: {reason}")
            time.sleep(0.2)
        return self.found_at(child.pid, http, grpc)

    def memory(self) -> float:
        """Megabytes; pages that its processes share are counted once (PSS)."""
        files = [Path(f"/proc/{member}/smaps_rollup") for member in family(self.process)]
        lines = [line for file in files for line in file.read_text().splitlines() if line.startswith("Pss:")]
        return sum(int(line.split()[1]) for line in lines) / 1024


class ServerWatch:
    """The use of the cores since this was made: by the server, and by all others but this one."""

    def __init__(self, process: int) -> None:
        self._process, self._start = process, time.perf_counter()
        self._watch, self._used = ContentionWatch(), _core_seconds(process)

    def look(self) -> tuple[float, float]:
        """The seconds that the server used, and how many cores the others kept busy."""
        used = _core_seconds(self._process) - self._used
        busy = self._watch.busy_cores() or 0.0
        return used, max(0.0, busy - used / (time.perf_counter() - self._start))


def family(process: int) -> list[int]:
    """The process and all below it."""
    found = [process]
    for parent in found:
        for file in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # the thread has ended meanwhile
                found += [int(child) for child in file.read_text().split()]
    return found


def _core_seconds(process: int) -> float:
    ticks = 0
    for member in family(process):
        fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:  # not listening yet, or the answer is that it is not ready
        return False


def _stop(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def environment(name: str) -> Path:
    """The folder with the programs of that server's environment, which is made once, outside the checkout."""
    home, stamp, wanted = CACHE / name, CACHE / name / "installed", "\n".join((sys.version, *PINS[name]))
    if not stamp.is_file() or stamp.read_text() != wanted:
        print(f"installing {PINS[name][0]} into {home}", flush=True)
        install(home, *PINS[name])
        stamp.write_text(wanted)
    return home / "bin"


def start_ours(name: str, folders: Sequence[Path], *flags: str) -> Contender:
    command = [Path(sys.executable).with_name("osa"), "serve", *folders, "--threads", "1", "--log-level", "warning"]
    return Contender(name).launch(
        lambda http, grpc: [*command, *flags, "--http-port", str(http), "--grpc-port", str(grpc)]
    )


def start_triton(name: str, folders: Sequence[Path], delay_us: int = 0) -> Contender:
    """The python backend with our session, as `osa package triton --backend python` writes it."""
    contender = Contender(name)
    home = Path(contender.closing.enter_context(tempfile.TemporaryDirectory()))
    package_triton(folders, home / "models", TritonSettings(backend="python", threads=1, max_delay_us=delay_us))
    try:
        triton_home()
        server = contender.closing.enter_context(TritonProcess(home / "models"))
    except (ServerUnavailable, AssertionError) as error:
        contender.closing.close()
        raise ServerUnavailable(str(error)[-500:]) from error
    http, grpc = (int(address.rpartition(":")[2]) for address in (server.http, server.grpc))
    return contender.found_at(server.process.pid, http, grpc)


def start_kserve(name: str, folders: Sequence[Path]) -> Contender:
    command = [environment("kserve") / "python", HERE / "kserve_server.py"]
    return Contender(name).launch(lambda http, grpc: [*command, str(http), str(grpc), *map(str, folders)])


def start_mlserver(name: str, folders: Sequence[Path], batching: Mapping[str, float] | None = None) -> Contender:
    """In one process, as all others are; ``batching`` has its settings of adaptive batching."""
    program = environment("mlserver") / "mlserver"
    contender = Contender(name)
    home = Path(contender.closing.enter_context(tempfile.TemporaryDirectory()))
    for folder in folders:
        settings: dict[str, Any] = {"name": folder.name, "implementation": "mlserver_runtime.OnnxModel"}
        settings |= {"parameters": {"uri": str(folder)}, **(batching or {})}
        (home / folder.name).mkdir()
        (home / folder.name / "model-settings.json").write_text(json.dumps(settings))

    def command(http: int, grpc: int) -> list[str | Path]:
        ports = {"http_port": http, "grpc_port": grpc, "host": "127.0.0.1", "metrics_endpoint": None}
        (home / "settings.json").write_text(json.dumps(ports | {"debug": False, "parallel_workers": 0}))
        return [program, "start", home]

    return contender.launch(command)


STARTS: dict[str, Callable[[str, Sequence[Path]], Contender]] = {
    "ours": start_ours,
    "ours, no batching": lambda name, folders: start_ours(name, folders, "--max-batch", "1"),
    "ours, 2 workers": lambda name, folders: start_ours(name, folders, "--workers", "2"),
    "triton": start_triton,
    "triton, 1 ms delay": lambda name, folders: start_triton(name, folders, DELAY_US),
    "kserve": start_kserve,
    "mlserver": start_mlserver,
    "mlserver, batching": lambda name, folders: start_mlserver(name, folders, ADAPTIVE),
}
