"""The two runners in C++: where their headers and libraries are, and how they are compiled."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import torch


class NoCompiler(Exception):
    """Something that a runner in C++ needs and that is not on this machine."""


def compiled(source: Path, home: Path, interpreter: Path) -> Path:
    """The program, compiled anew; ``interpreter`` is that of the environment with the library."""
    if shutil.which("g++") is None:
        raise NoCompiler("g++ is not installed")
    program = home / source.stem
    flags = _libtorch() if source.stem == "in_libtorch" else _onnxruntime(interpreter)
    command = ["g++", "-std=c++20", "-O0", str(source), "-o", str(program), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoCompiler(f"it does not compile: {' '.join(done.stderr.split())[:300]}")
    return program


def _libtorch() -> list[str]:
    """Headers and libraries are in torch's wheel."""
    home = Path(torch.__file__).parent
    lib, abi = home / "lib", int(torch.compiled_with_cxx11_abi())
    include = [
        f"-I{home / 'include'}",
        f"-I{home / 'include/torch/csrc/api/include'}",
        f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
    ]
    return [*include, f"-L{lib}", f"-Wl,-rpath,{lib}", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"]


def _onnxruntime(interpreter: Path) -> list[str]:
    """The library is in the wheel; its headers are not in any wheel."""
    include = Path(os.environ.get("ONNXRUNTIME_INCLUDE", "/usr/include/onnxruntime"))
    if not (include / "onnxruntime_cxx_api.h").exists():
        raise NoCompiler(f"no headers in {include}: install libonnxruntime-dev, or set ONNXRUNTIME_INCLUDE")
    library = next(interpreter.parents[1].glob("lib/python*/site-packages/onnxruntime/capi/libonnxruntime.so.1.*"))
    link = library.with_name("libonnxruntime.so.1")  # the name that programs look for, which a wheel cannot hold
    if not link.exists():
        link.symlink_to(library.name)
    return [f"-I{include}", str(library), f"-Wl,-rpath,{library.parent}"]
