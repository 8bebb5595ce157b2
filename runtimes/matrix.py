"""One model in every runtime: ``make test-runtimes`` installs each in an environment of its own and asks them all.

Writes docs/runtimes.md. Exits with 1 if a runtime that could be installed was wrong or failed.
``matrix.py NAME …`` runs the rows whose runtime or target contains one of these words; the others stay as they were.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case, Model, compared, judged, models, write_model, write_plan
from native import NoCompiler, compiled
from numpy.typing import NDArray

from osa_runtime.ops.coefficients import LARGEST_TERMS_ALONE
from osa_runtime.ops.scaling import largest_norm, reach
from osa_runtime.parity.tolerances import FLOAT32_ALONE_SHARE, NORM_SLACK
from osa_runtime.targets import SQUARINGS, TARGETS

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[1]
HOME = ROOT / ".venv-runtimes"
NODE = HOME / "node" / "node_modules"
REPORT = ROOT / "docs" / "runtimes.md"
TIME_LIMIT = 1800
LONGEST_REASON = 120  # characters


@dataclass(frozen=True)
class Row:
    """``needs`` are the packages of its environment, or none for that of the project; ``options`` those of export."""

    runtime: str
    target: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    options: Mapping[str, Any] | None = None
    static: bool = False
    only: tuple[str, ...] = ()  # the models, where all of them would take hours to compile

    @property
    def name(self) -> str:
        return f"{self.runtime} {self.target}"

    @property
    def how(self) -> Mapping[str, Any]:
        return TARGETS[self.target].options if self.options is None else self.options

    @property
    def is_static(self) -> bool:
        return self.static or (self.target in TARGETS and "dynamic_axes" in TARGETS[self.target].lacks)

    def may_be_nan(self, case: Case) -> NDArray[np.bool_]:
        """The rows that the export does not answer: fixed squarings reach so far, float32 alone less."""
        if "squarings" not in self.how:
            return np.zeros(len(case.norms), bool)
        beyond = case.norms * NORM_SLACK > largest_norm(reach("taylor", "lowrank", False), SQUARINGS, False)
        return beyond | (case.terms > LARGEST_TERMS_ALONE if self.how.get("core") == "float32" else False)


def python(runtime: str) -> tuple[str, ...]:
    return "{python}", str(HERE / "in_python.py"), runtime


def ort(version: str, target: str = "ort") -> Row:
    numpy = ("numpy<2",) if version < "1.19" else ()
    return Row(f"ONNX Runtime {version}", target, python("onnxruntime"), (f"onnxruntime=={version}", *numpy))


NEWEST = "1.31.1"
TORCH = ("torch==2.13.0",)
PT2 = {"format": "pt2"}
ROWS = (
    *(ort(version) for version in ("1.17.3", "1.18.1", "1.20.1", "1.22.1", "1.25.1", NEWEST)),
    ort("1.17.3", "tract"),
    ort("1.18.1", "tract"),
    ort(NEWEST, "tract"),
    ort(NEWEST, "openvino"),
    Row("onnxruntime-node", "ort", python("ort-node"), ("npm",)),
    Row("onnxruntime-web (WASM)", "ort-web", ("node", str(HERE / "in_browser.mjs"), "wasm"), ("npm",)),
    Row("onnxruntime-web (WebGPU)", "webgpu", ("node", str(HERE / "in_browser.mjs"), "webgpu"), ("npm",)),
    Row("C++, libonnxruntime", "ort", ("{cpp}", "in_onnxruntime.cpp"), (f"onnxruntime=={NEWEST}",)),
    Row("onnx's ReferenceEvaluator", "ort", python("reference")),
    Row("OpenVINO", "openvino", python("openvino")),
    Row("tract", "tract", python("tract")),
    Row("IREE", "iree", python("iree"), ("iree-base-compiler[onnx]==3.13.0", "iree-base-runtime==3.13.0")),
    Row("Apache TVM", "tvm", python("tvm"), ("apache-tvm==0.27.0.post1", "onnx")),
    Row("ExecuTorch", "executorch", python("executorch"), (*TORCH, "executorch==1.5.1")),
    Row("LiteRT", "litert", python("litert"), (*TORCH, "litert-torch==0.10.0"), static=True),
    Row("AOTInductor", "aoti", python("aoti"), only=("own",)),
    Row("AOTInductor", "straight .pt2", python("aoti"), options=PT2 | {"squarings": SQUARINGS}, only=("own",)),
    Row("C++, libtorch", "TorchScript", ("{cpp}", "in_libtorch.cpp"), options={"format": "torchscript"}),
)


@dataclass
class Result:
    """What a runtime did. ``missing`` says why it could not be had; ``faults`` what was wrong."""

    row: Row
    version: str = ""
    right: int = 0
    nan: int = 0
    faults: list[str] = field(default_factory=list)
    largest: float = 0.0
    share: float = 0.0
    milliseconds: list[float] = field(default_factory=list)
    missing: str = ""

    @property
    def verdict(self) -> str:
        if self.missing:
            return f"not run: {self.missing}"
        if not self.faults:
            return "right"
        total = self.right + self.nan + len(self.faults)
        return f"**fails** {len(self.faults)} of {total}: {self.faults[0][:LONGEST_REASON]}"


class NotHere(Exception):
    """A runtime that cannot be had on this machine, and why."""


def run_row(row: Row, models: Mapping[str, Model], cases: Sequence[Case]) -> Result:
    result = Result(row)
    try:
        command = [*prepared(row)]
    except (NotHere, NoCompiler, subprocess.TimeoutExpired) as error:
        result.missing = str(error)
        return result
    calls, refused = [], []
    firsts = {case.model: case for case in reversed(cases)}
    for case in (case for case in cases if not row.only or case.model in row.only):
        example = case if row.is_static else firsts[case.model]
        try:
            calls.append(
                (case, write_model(case.model, models[case.model], example, HOME / "models", row.how, row.is_static))
            )
        except Exception as error:  # noqa: BLE001  # the row says what the exporter said
            refused.append(f"{case.model}, {case.name}: {error}")
    calls.sort(key=lambda call: str(call[1]))  # stable, so that each model is loaded once
    result.faults += refused
    folder = HOME / "answers" / row.name.replace(" ", "-")
    shutil.rmtree(folder, ignore_errors=True)
    plan = write_plan(calls, folder)
    said = _ask([*command, str(plan)])
    judge(result, [case for case, _ in calls], folder, said)
    return result


def _ask(command: list[str]) -> list[list[str]]:
    environment = os.environ | {"NODE_PATH": str(NODE), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIME_LIMIT, env=environment, cwd=HOME, check=False
        )
        lines = [line for line in done.stderr.splitlines() if "rror:" in line]
        output, ended = done.stdout, lines[:1] if done.returncode else []
    except subprocess.TimeoutExpired as error:
        output, ended = (error.stdout or b"").decode(), [f"no answer within {TIME_LIMIT} s"]
    lines = [line.split("\t") for line in output.splitlines()]
    return [*lines, *(["ended", line] for line in ended)]


def judge(result: Result, cases: Sequence[Case], folder: Path, said: Iterable[list[str]]) -> None:
    """Every call is right, NaN where the export says so, or a fault: one that was not answered is a fault, too."""
    answered: dict[int, list[str]] = {}
    ended = "the process ended"
    for kind, *words in said:
        if kind == "version":
            result.version = words[0]
        elif kind == "ended":
            ended = words[0]
        elif kind in ("ok", "error"):
            answered[int(words[0])] = [kind, *words[1:]]
    for index, case in enumerate(cases):
        kind, text = answered.get(index, ["error", ended])
        name = f"{case.model}, {case.name}"
        if kind == "error":
            result.faults.append(f"{name}: {text}")
            continue
        result.milliseconds.append(1e3 * float(text))
        _judge_answer(result, case, name, np.fromfile(folder / f"{case.file}.answer", np.float32))


def _judge_answer(result: Result, case: Case, name: str, flat: Any) -> None:
    if flat.size != case.expected.size:
        result.faults.append(f"{name}: {flat.size} values, expected {case.expected.size}")
        return
    differences, lost = compared(flat.reshape(case.expected.shape), case.expected)
    tolerances = case.tolerances * (FLOAT32_ALONE_SHARE if result.row.how.get("core") == "float32" else 1.0)
    worst = (differences / tolerances).argmax()
    if differences[worst] > tolerances[worst]:
        result.faults.append(f"{name}: off by {differences[worst]:.1e}, where {tolerances[worst]:.1e} is allowed")
    elif (missing := lost & ~result.row.may_be_nan(case)).any():
        result.faults.append(f"{name}: NaN, at ‖S‖ of {case.norms[missing].min():.2g}")
    else:
        result.nan, result.right = result.nan + lost.any(), result.right + (not lost.any())
        result.largest = max(result.largest, differences.max())
        result.share = max(result.share, differences[worst] / tolerances[worst])


def prepared(row: Row) -> Iterator[str]:
    """The command of a row, when its environment is there."""
    if row.needs == ("npm",):
        _install_node()
        if "in_browser" in row.command[1]:
            _find_chromium()
        interpreter = sys.executable
    else:
        interpreter = _environment(row.needs) if row.needs else sys.executable
    if row.command[0] == "{cpp}":
        yield str(compiled(HERE / row.command[1], HOME, Path(interpreter)))
        return
    for word in row.command:
        yield word.format(python=interpreter)


def _environment(needs: tuple[str, ...]) -> str:
    """A virtual environment with these packages, and with this project where it holds torch."""
    folder = HOME / "-".join(need.replace("[onnx]", "") for need in needs if not need.startswith(("torch", "numpy")))
    interpreter = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _call([sys.executable, "-m", "venv", str(folder)])
        install = [str(interpreter), "-m", "pip", "-qq", "install"]
        if needs[0].startswith("torch"):  # first and alone: other packages would take a build for CUDA
            _call([*install, needs[0], "numpy"])
            (folder / "constraints.txt").write_text(needs[0] + "\n")
            install += ["-c", str(folder / "constraints.txt")]
        _call([*install, *needs])
        (folder / "complete").touch()
    if needs[0].startswith("torch"):  # as it is now
        _call([str(interpreter), "-m", "pip", "-qq", "install", "--no-deps", "--force-reinstall", str(ROOT)])
    return str(interpreter)


def _install_node() -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise NotHere("Node.js is not installed")
    packages = ("onnxruntime-node", "onnxruntime-web", "playwright-core")
    if not all((NODE / name).exists() for name in packages):
        NODE.parent.mkdir(parents=True, exist_ok=True)
        # its install script would fetch the CUDA libraries
        _call(["npm", "install", "--silent", "--prefix", str(NODE.parent), *packages], ONNXRUNTIME_NODE_INSTALL="skip")


def _find_chromium() -> None:
    path = os.environ.setdefault("CHROMIUM", "/usr/bin/chromium")
    if not os.access(path, os.X_OK):
        raise NotHere(f"no Chromium at {path}: install it, or set CHROMIUM")


def _call(command: list[str], **environment: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIME_LIMIT, env=os.environ | environment, check=False
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "rror:" in line] or done.stderr.splitlines()
        raise NotHere(f"`{Path(command[0]).name} {' '.join(command[1:])[:80]}` failed: {' '.join(lines[:1])[:200]}")


def main(words: list[str]) -> int:
    digits = HOME / "digits"
    if not (digits / "checkpoint").exists():
        command = [sys.executable, "-m", "osa_runtime", "train", "digits", "--epochs", "5", "--out", str(digits)]
        subprocess.run(command, check=True)
    made = models(digits)
    cases = list(judged(made))
    shutil.rmtree(HOME / "models", ignore_errors=True)  # other code may have exported them
    if not words:
        shutil.rmtree(HOME / "results", ignore_errors=True)
    (HOME / "results").mkdir(exist_ok=True)
    failed = False
    for row in ROWS:
        if not words or any(word.lower() in row.name.lower() for word in words):
            result = run_row(row, made, cases)
            failed = failed or bool(result.faults)
            (HOME / "results" / f"{row.name}.txt").write_text(line(result))
            print(line(result), flush=True)  # noqa: T201
    REPORT.write_text(INTRODUCTION.format(calls=len(cases)) + "".join(map(stored_line, ROWS)))
    return int(failed)


def stored_line(row: Row) -> str:
    stored = HOME / "results" / f"{row.name}.txt"
    return f"{stored.read_text() if stored.exists() else line(Result(row, missing='not asked'))}\n"


def line(result: Result) -> str:
    name = result.row.runtime + ("" if result.version in ("", *result.row.runtime.split()) else f" {result.version}")
    ran = bool(result.milliseconds)
    cells = (
        name,
        result.row.target,
        f"{result.right}, {result.nan} NaN" if ran else "",
        f"{result.largest:.1e}" if ran else "",
        f"{100 * result.share:.0f} %" if ran else "",
        f"{np.median(result.milliseconds):.2f}" if ran else "",
        result.verdict.replace("|", "\\|"),
    )
    return f"| {' | '.join(cells)} |"


INTRODUCTION = """# Runtimes

Written by `make test-runtimes`, which installs each runtime in an environment of its own, exports the models for it
(`--target`) and compares its answers with float64. {calls} calls of five models: a ViT trained on digits, an encoder
with masks at 12 and 48 tokens (dense and low-rank), a module of its own with N = 2d, 2d + 1, 1 and 40, and ViTs with
softmax and polynomial attention; ‖S‖ from 0.01 to 300, also both in one batch, Q and K that nearly cancel, V of 1e±30,
a Q of zeros, NaN and Inf in K, and images that hold NaN. Each entry of a batch is judged by itself.

- **right** counts answers within the tolerance of `osa verify` (four times that for float32 alone), and NaN those that
  the export does not answer: beyond its squarings, or beyond what float32 alone can hold. A number in the place of NaN,
  NaN in the place of a number, an error and a crash are all failures.
- **difference** is the largest one, relative to the largest value of its row; the next column is its share of what is
  allowed, which grows with ‖S‖.
- **ms** is the median over the calls of the shortest of five runs, on one thread; the machine may have been busy.
- AOTInductor is given the module of its own alone, 10 calls: compiling all of them takes an hour. Rows can be run
  one by one (`python runtimes/matrix.py NAME`); one that was not asked yet says so.

| runtime | target | right | difference | of allowed | ms | verdict |
|---|---|---|---|---|---|---|
"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
