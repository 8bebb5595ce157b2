"""NVIDIA's own tritonserver, from the wheel of nvidia-pytriton, in a virtual environment and a process of its own.

The environment is made once, in .venv-triton. It holds no torch and not this package: what a model needs beyond numpy
and ONNX Runtime must be in its repository.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

# Without their own dependencies: only the server's binaries are wanted, and what ONNX Runtime imports.
PINS = (
    "nvidia-pytriton==0.7.0",
    "numpy==1.26.4",
    "onnxruntime==1.31.1",
    "flatbuffers==25.12.19",
    "protobuf==6.33.6",
    "packaging==26.3",
)
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
HOME = Path(__file__).resolve().parent.parent / ".venv-triton"
STAMP = HOME / "installed"
INSTALL_SECONDS, START_SECONDS = 900, 120


class ServerUnavailable(Exception):
    """The server cannot be had here; the message says why."""


def triton_home() -> Path:
    """The environment, made now if need be; a second process waits for the first."""
    if not (Path(sysconfig.get_config_var("LIBDIR") or "") / str(sysconfig.get_config_var("INSTSONAME"))).is_file():
        raise ServerUnavailable("this Python has no shared library, which Triton's python backend loads")
    with _locked(HOME.with_name(f"{HOME.name}.lock")):
        if not STAMP.is_file() or STAMP.read_text() != "\n".join((PYTHON, *PINS)):
            _install()
    return HOME


def install(home: Path, *arguments: str) -> None:
    """Make a new virtual environment, with what these arguments of ``pip install`` name; the first is the server."""
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home, with_pip=False)
    command = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "--quiet", "--retries", "1"]
    try:
        child = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise ServerUnavailable(f"{arguments[0]} could not be installed within {INSTALL_SECONDS} s") from error
    if child.returncode != 0:
        reason = child.stderr.strip().rpartition("\n")[2]
        raise ServerUnavailable(f"{arguments[0]} cannot be installed here: {reason}")


def _install() -> None:
    install(HOME, *PINS, "--no-deps")
    server = _packages() / "pytriton" / "tritonserver"
    stub = server / "python_backend_stubs" / PYTHON / "triton_python_backend_stub"
    if not stub.is_file():
        raise ServerUnavailable(f"{PINS[0]} has no python backend for Python {PYTHON}")
    shutil.copy(stub, server / "backends" / "python")
    STAMP.write_text("\n".join((PYTHON, *PINS)))


def _packages() -> Path:
    return HOME / "lib" / f"python{PYTHON}" / "site-packages"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


class TritonProcess:
    """``http`` and ``grpc`` are its addresses once it is ready."""

    def __init__(self, *repositories: Path, flags: tuple[str, ...] = (), ready: bool = True) -> None:
        home = _packages() / "pytriton" / "tritonserver"
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in stop()
        http, grpc = free_ports(2)
        self.http, self.grpc = f"127.0.0.1:{http}", f"127.0.0.1:{grpc}"
        addresses = [f"--http-port={http}", f"--grpc-port={grpc}"]
        addresses += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--allow-metrics=false"]
        command = [home / "bin" / "tritonserver", f"--backend-directory={home / 'backends'}", *addresses, *flags]
        command += [f"--model-repository={repository}" for repository in repositories]
        self.process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT, env=_environment())
        self.code: int | None = None
        if ready:
            try:
                self._wait_until_ready()
            except BaseException:
                self.stop()
                raise

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            assert self.process.poll() is None, f"tritonserver ended with {self.process.returncode}\n{self.log()}"
            if self._is_ready():
                return
            time.sleep(0.05)
        raise AssertionError(f"tritonserver was not ready within {START_SECONDS} s\n{self.log()}")

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.http}/v2/health/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:  # nobody listens yet, or the answer is that it is not ready
            return False

    def children(self) -> list[int]:
        """The processes of its model instances."""
        listed = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for file in listed for pid in file.read_text().split()]

    def stop(self) -> int:
        """The exit code after SIGTERM."""
        if self.code is None:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
            try:
                self.code = self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.code = self.process.wait()
        return self.code

    def __enter__(self) -> TritonProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._log.close()


def _environment() -> dict[str, str]:
    libraries = [str(_packages() / "nvidia_pytriton.libs"), str(sysconfig.get_config_var("LIBDIR"))]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    path = f"{HOME / 'bin'}{os.pathsep}{kept.get('PATH', '')}"  # the stub takes its packages from the first python3
    return kept | {"PATH": path, "LD_LIBRARY_PATH": os.pathsep.join(libraries), "OMP_NUM_THREADS": "1"}


def free_ports(count: int) -> list[int]:
    """For servers that take no port 0. Below 32768 none becomes the port of an outgoing connection meanwhile."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20000, 32768)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found += [port] if port not in found else []
    return found
