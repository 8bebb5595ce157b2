"""What lies at a path that was meant to be an artifact or a checkpoint, and what to do with it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from osa_runtime.artifact import MANIFEST_FILE
from osa_runtime.errors import ArtifactError, CheckpointError
from osa_runtime.file_kinds import FileKind, file_kind
from osa_runtime.formats import FORMATS

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"  # of a checkpoint
CHECKPOINT_FOLDER, STATE_FILE = "checkpoint", "state.pt"  # of a training run

EXPECTED_ARTIFACT = "expected a folder that `osa export` wrote, or a model file (.onnx, .pt, .pt2)"
EXPECTED_CHECKPOINT = f"a checkpoint is a folder with {CONFIG_FILE} and {WEIGHTS_FILE}, as `osa train` writes it"
FACTORY = "`osa export --factory package.module:function --weights {path} --out NAME`"


@dataclass(frozen=True)
class Found:
    """``what`` completes "PATH is …"; the others say what to do where something else was wanted."""

    what: str
    for_artifact: str = f"{EXPECTED_ARTIFACT}."
    for_checkpoint: str = f"{EXPECTED_CHECKPOINT}."


def not_an_artifact(path: Path) -> ArtifactError:
    """For a path that cannot be opened as an exported model."""
    found = _recognise(path)
    return ArtifactError(f"{path} {found.what}; {found.for_artifact}")


def not_a_checkpoint(path: Path) -> CheckpointError:
    """For a path that cannot be opened as a checkpoint or a training run."""
    found = _recognise(path)
    return CheckpointError(f"{path} {found.what}; {found.for_checkpoint}")


def _recognise(path: Path) -> Found:
    if not path.exists():
        return Found(f"does not exist{_similar(path)}")
    return _folder(path) if path.is_dir() else _file(path)


def _similar(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, n=1)
    return f" (did you mean {path.parent / near[0]}?)" if near else ""


def _file(path: Path) -> Found:
    kind, there = file_kind(path), quote(str(path))
    what = f"is {kind.value}"
    if kind in (FileKind.WEIGHTS, FileKind.SAFETENSORS):
        if path.name == WEIGHTS_FILE and (path.parent / CONFIG_FILE).is_file():
            return _checkpoint(path.parent, "holds the weights of a checkpoint")
        if path.name == STATE_FILE:
            return _unfinished(path.parent, "is the state of an unfinished training run")
        build = f"give the code that builds its module: {FACTORY.format(path=there)}."
        return Found(what, f"to run them, {build}", build)
    if kind is FileKind.PICKLE:
        advice = (
            "reading it would run the code in it. Save its weights alone with torch.save(module.state_dict(), "
            f"'weights.pt'), and give the code that builds the module: {FACTORY.format(path='weights.pt')}."
        )
        return Found(what, advice, advice)
    if kind in (FileKind.ONNX, FileKind.TORCHSCRIPT, FileKind.PT2):
        return Found(what, _alone(path, kind), f"it is exported already. Look at it with `osa inspect {there}`.")
    if kind in (FileKind.PICTURE, FileKind.ARRAYS):
        return Found(what, f"give the model first: `osa run ARTIFACT --input {there}`.")
    if kind is FileKind.LFS:
        fetch = "fetch the file itself with `git lfs pull`."
        return Found(what, fetch, fetch)
    return Found(what)


def _alone(path: Path, kind: FileKind) -> str:
    """For a model file: its name may be wrong, or a folder with a manifest is needed."""
    suffix = {FileKind.ONNX: ".onnx", FileKind.TORCHSCRIPT: ".pt", FileKind.PT2: ".pt2"}[kind]
    if path.suffix != suffix:
        return f"give it a name that ends in {suffix}."
    if (path.parent / MANIFEST_FILE).is_file():
        return f"give its folder: {path.parent}."
    return f"expected a folder that `osa export` wrote, with its {MANIFEST_FILE}."


def _folder(path: Path) -> Found:
    there = quote(str(path))
    if (path / MANIFEST_FILE).is_file():
        use = f"it is exported already. Look at it with `osa inspect {there}`, or compare it: `osa compare A B`."
        return Found("is an artifact", for_checkpoint=use)
    if (path / CONFIG_FILE).is_file():
        return _configured(path)
    if (path / CHECKPOINT_FOLDER / CONFIG_FILE).is_file():
        return _checkpoint(path, "is a training run with a checkpoint")
    if (path / STATE_FILE).is_file():
        return _unfinished(path, "is a training run that has not finished")
    return _other_folder(path)


def _configured(path: Path) -> Found:
    fields = _json(path / CONFIG_FILE)
    if "model" in fields and "config" in fields:
        return _checkpoint(path, "is a checkpoint")
    if {"architectures", "model_type"} & set(fields):
        advice = (
            "build its module in a function of your own, with its library, and export that: "
            "`osa export --factory package.module:function --out NAME`."
        )
        return Found("is a model of the Hugging Face Hub, not a checkpoint of ours", advice, advice)
    return Found(f"has a {CONFIG_FILE} that is not ours")


def _checkpoint(path: Path, what: str) -> Found:
    export = f"export it first: `osa export {quote(str(path))} --out NAME`, then give NAME."
    return Found(what, export, f"give the folder: {path}.")


def _unfinished(path: Path, what: str) -> Found:
    advice = f"the command that started it continues it: `osa train … --out {quote(str(path))}`. Export it after that."
    return Found(what, advice, advice)


def _other_folder(path: Path) -> Found:
    try:
        entries = sorted(path.iterdir())
    except OSError as error:
        return Found(f"cannot be read ({error.strerror or error})")
    if not entries:
        return Found("is an empty folder")
    models = [
        entry.name
        for entry in entries
        if entry.name in {known.file for known in FORMATS.values()} or entry.suffix == ".onnx"
    ]
    if models:
        give = f"give the file itself: {path / models[0]}."
        return Found(f"has a model file but no {MANIFEST_FILE}", give)
    artifacts = _names(entry for entry in entries if _is_artifact(entry))
    if artifacts:
        serve = f"name one of them ({artifacts}), or serve all: `osa serve --repository {quote(str(path))}`."
        return Found("is a folder of artifacts", serve, f"name a checkpoint instead; {EXPECTED_CHECKPOINT}.")
    runs = _names(entry for entry in entries if (checkpoint_folder(entry) / CONFIG_FILE).is_file())
    if runs:
        return Found("is a folder of checkpoints", f"export one of them ({runs}) first.", f"name one of them: {runs}.")
    return Found(f"has neither a {MANIFEST_FILE} nor a {CONFIG_FILE}")


def checkpoint_folder(folder: str | Path) -> Path:
    """The folder itself, or the checkpoint in it when it is that of a training run."""
    inside = Path(folder) / CHECKPOINT_FOLDER
    return inside if (inside / CONFIG_FILE).is_file() and not (Path(folder) / CONFIG_FILE).exists() else Path(folder)


def _is_artifact(entry: Path) -> bool:
    """Of a folder, or of one that holds numbered versions."""
    if (entry / MANIFEST_FILE).is_file():
        return True
    return entry.is_dir() and any(
        child.name.isdecimal() and (child / MANIFEST_FILE).is_file() for child in entry.iterdir()
    )


def _names(entries: Iterator[Path]) -> str:
    names = [entry.name for entry in entries]
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")


def _json(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
