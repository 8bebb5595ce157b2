"""A model repository for NVIDIA's Triton, from exported folders.

REPO/osa-package.json             the list of packed models; marks a repository that we wrote
REPO/NAME/config.pbtxt            inputs, outputs, batching, warm-up
REPO/NAME/warmup/                 the samples of the warm-up
REPO/NAME/1/model.onnx            the artifact, as it was exported, with its manifest
REPO/NAME/1/model.py, osa_runtime/    for the python backend: the code that runs it

``osa serve --repository REPO`` serves the same folder.

The copy of our runtime is next to the model, so that a model runs on the code it was packed with, whatever is
installed there, and two models of different age run side by side. It needs numpy and ONNX Runtime.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from modulefinder import ModuleFinder
from pathlib import Path

import numpy as np

from osa_runtime.artifact import Artifact
from osa_runtime.errors import RunError
from osa_runtime.formats import FORMATS
from osa_runtime.packaging.packed_artifacts import copy_artifact, describe, new_package, open_onnx
from osa_runtime.packaging.triton_config import Feeds, TritonConfig, TritonSettings
from osa_runtime.runtime.session import load
from osa_runtime.sample_inputs import sample_inputs, usual_sizes

MODEL_PY = '''"""Runs the exported model in this folder. Triton's Python needs numpy and onnxruntime, nothing else."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the copy of osa_runtime in this folder comes first

from osa_runtime.packaging.triton_model import TritonPythonModel  # noqa: E402, F401 - Triton looks for this name
'''


@dataclass(frozen=True)
class PackedModel:
    """A packed model; ``max_batch`` is 0 for one that takes one request at a time."""

    name: str
    artifact: Path
    max_batch: int


def package_triton(
    artifacts: Sequence[Path],
    out: Path,
    settings: TritonSettings | None = None,
    *,
    name: str | None = None,
    replace: bool = False,
) -> list[PackedModel]:
    """Write a model repository with one model per artifact, named after its folder or ``name``, in one step."""
    settings = settings or TritonSettings()
    with new_package(artifacts, out, name, "Triton", replace=replace) as (temporary, named):
        packed = [_write_model(temporary, model, folder, settings) for model, folder in named.items()]
        sizes = {model.name: {"max_batch_size": model.max_batch} for model in packed}
        describe(temporary, "triton", settings=asdict(settings), models=sizes)
    return packed


def _write_model(repository: Path, name: str, folder: Path, settings: TritonSettings) -> PackedModel:
    artifact = open_onnx(folder)
    interface = artifact.manifest.interface
    config = TritonConfig(name, interface, settings, artifact.manifest.configuration_parameters())
    samples = _tried_samples(artifact, config) if settings.warm_up else {}
    home = repository / name
    version = home / str(settings.version)
    version.mkdir(parents=True)
    copy_artifact(artifact, version)
    if settings.backend == "python":
        copy_runtime(version)
        (version / "model.py").write_text(MODEL_PY, encoding="utf-8")
    files: Mapping[str, str] = _write_samples(home / "warmup", samples) if samples else {}
    (home / "config.pbtxt").write_text(config.text(samples, files), encoding="utf-8")
    return PackedModel(name, folder, config.max_batch)


def _tried_samples(artifact: Artifact, config: TritonConfig) -> Feeds:
    """Inputs that Triton runs before it reports a model ready, so that no client waits for the first run.

    Zeros or random bytes, which Triton could generate itself, would be unknown ids and masks without any real token.
    The model has run these here, because a sample that fails prevents the model from starting in Triton.
    """
    feeds = sample_inputs(config.interface, usual_sizes(config.interface))
    with load(artifact.folder, threads=1, check_hash=False, cache=False) as session:
        try:
            session.run(feeds, check_finite=True)
        except RunError as error:
            raise RunError(
                f"{artifact.folder} fails on its warm-up sample, so Triton would not start it: {error} "
                "Package it with warm_up=False if it is right on your data."
            ) from error
    return feeds


def _write_samples(folder: Path, feeds: Feeds) -> dict[str, str]:
    """Write the raw bytes of each input to a file named by number: an input's name need not be a valid file name."""
    folder.mkdir()
    names = {name: f"input{number}" for number, name in enumerate(feeds)}
    for name, file in names.items():
        array = feeds[name]
        (folder / file).write_bytes(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
    return names


PACKAGE = Path(__file__).resolve().parent.parent
MODEL = f"{PACKAGE.name}.packaging.triton_model"
SESSION = f"{PACKAGE.name}.{FORMATS['onnx'].session.partition(':')[0]}"  # found by name, not imported
PROBE = PACKAGE / "runtime" / "probe.py"  # a script that is run, not imported
# osa_runtime/__init__.py imports these on demand.
FACADE = ("evaluation", "exporters", "models", "nn", "ops", "quantization", "verification")
OTHERS = ("runtime.torch_session", "runtime.other_runtimes")  # the model runs in ONNX Runtime
LEFT_OUT = ("numpy", *(f"{PACKAGE.name}.{part}" for part in (*OTHERS, *FACADE)))


def runtime_files() -> list[Path]:
    """Files that the model imports, directly or not, also in functions. Only ONNX models are packed, so no torch."""
    finder = ModuleFinder([str(PACKAGE.parent)], excludes=LEFT_OUT)
    for module in (MODEL, SESSION):
        finder.import_hook(module)
    ours = [module for name, module in finder.modules.items() if name.split(".")[0] == PACKAGE.name]
    return sorted([PROBE, *(Path(vars(module)["__file__"]) for module in ours)])


def copy_runtime(folder: Path) -> None:
    """Write ``folder/osa_runtime``."""
    for file in runtime_files():
        target = folder / file.relative_to(PACKAGE.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
