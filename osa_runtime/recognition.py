"""Recognition of a path that was meant to be an artifact or a checkpoint, with advice on what to do with it."""

from __future__ import annotations

import difflib
import json
import pickletools
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from shlex import quote
from typing import IO, Any

from osa_runtime.artifact import MANIFEST_FILE
from osa_runtime.errors import ArtifactError, CheckpointError
from osa_runtime.formats import FORMATS

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"  # of a checkpoint
CHECKPOINT_FOLDER, STATE_FILE = "checkpoint", "state.pt"  # of a training run

EXPECTED_ARTIFACT = "expected a folder that `osa export` wrote, or a model file (.onnx, .pt, .pt2)"
EXPECTED_CHECKPOINT = f"a checkpoint is a folder with {CONFIG_FILE} and {WEIGHTS_FILE}, as `osa train` writes it"
FACTORY = "`osa export --factory package.module:function --weights {path} --out NAME`"


@dataclass(frozen=True)
class Found:
    """``what`` completes "PATH is …"; the other fields are advice for callers that expected something else."""

    what: str
    for_artifact: str = f"{EXPECTED_ARTIFACT}."
    for_checkpoint: str = f"{EXPECTED_CHECKPOINT}."


def not_an_artifact(path: Path) -> ArtifactError:
    """The error for a path that cannot be opened as an exported model."""
    found = _recognise(path)
    return ArtifactError(f"{path} {found.what}; {found.for_artifact}")


def not_a_checkpoint(path: Path) -> CheckpointError:
    """The error for a path that cannot be opened as a checkpoint or a training run."""
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
    """Advice for a model file: its name may be wrong, or a folder with a manifest is needed."""
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
    """The folder itself, or the checkpoint inside if it is a training run."""
    inside = Path(folder) / CHECKPOINT_FOLDER
    return inside if (inside / CONFIG_FILE).is_file() and not (Path(folder) / CONFIG_FILE).exists() else Path(folder)


def _is_artifact(entry: Path) -> bool:
    """True if a folder is an artifact, or holds numbered versions of one."""
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


MOST_PICKLES = 5  # torch's format before zip archives: a magic number, a version, the machine, the object, its tensors
LARGEST_PICKLE = 32 * 2**20
PLAIN_DATA = ("collections", "torch", "torch._utils", "torch._tensor", "torch.storage", "torch.serialization")
PICTURES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"P5\n", b"P6\n")


class FileKind(Enum):
    """The value completes "FILE is …"."""

    ONNX = "an ONNX model"
    TORCHSCRIPT = "a TorchScript model"
    PT2 = "a model of torch.export"
    WEIGHTS = "a file of weights without a model (a state_dict)"
    SAFETENSORS = "a safetensors file: weights without a model"
    PICKLE = "a pickled Python object, perhaps a whole module"
    ARRAYS = "a file of arrays"
    PICTURE = "a picture"
    LFS = "a Git LFS pointer to the real file"
    EMPTY = "an empty file"
    UNKNOWN = "not a file that we know"


# Certainly not models; anything else may be a damaged one, for which the runtime has the best message.
NO_MODELS = frozenset(FileKind) - {FileKind.ONNX, FileKind.TORCHSCRIPT, FileKind.PT2, FileKind.UNKNOWN}


def file_kind(path: Path) -> FileKind:
    try:
        with path.open("rb") as stream:
            head = stream.read(64)
            stream.seek(0)
            if not head:
                return FileKind.EMPTY
            if zipfile.is_zipfile(stream):
                return _archive(path)
            stream.seek(0)
            return _by_head(head) or _pickle(head, stream) or _by_name(path)
    except OSError:
        return FileKind.UNKNOWN


def _by_head(head: bytes) -> FileKind | None:
    if head.startswith(b"version https://git-lfs"):
        return FileKind.LFS
    if head.startswith(b"\x93NUMPY"):
        return FileKind.ARRAYS
    if head.startswith(PICTURES) or head[8:12] == b"WEBP":
        return FileKind.PICTURE
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**32:
        return FileKind.SAFETENSORS
    return None


def _by_name(path: Path) -> FileKind:
    """The kind by the file's name: a protobuf has no recognisable header."""
    return FileKind.ONNX if path.suffix == ".onnx" else FileKind.UNKNOWN


def _archive(path: Path) -> FileKind:
    try:
        with zipfile.ZipFile(path) as archive:
            # All records of torch are in one folder, which has the file's original name.
            names = {name.partition("/")[2]: name for name in archive.namelist()}
            if "archive_format" in names:
                return FileKind.PT2
            if any(name.startswith("code/") for name in names):
                return FileKind.TORCHSCRIPT
            if "data.pkl" in names:
                with archive.open(names["data.pkl"]) as stream:
                    return FileKind.WEIGHTS if _is_plain(stream) else FileKind.PICKLE
            arrays = all(name.endswith(".npy") for name in archive.namelist())
            return FileKind.ARRAYS if arrays and archive.namelist() else FileKind.UNKNOWN
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError):
        return FileKind.UNKNOWN


def _pickle(head: bytes, stream: IO[bytes]) -> FileKind | None:
    if head[:1] != b"\x80" or head[1] > 5:
        return None
    return FileKind.WEIGHTS if _is_plain(stream) else FileKind.PICKLE


def _is_plain(stream: IO[bytes]) -> bool:
    """True if a pickle names only the classes that tensors are made of; nothing is called."""
    return all(module in PLAIN_DATA or module.startswith("numpy") for module in _modules(stream))


def _modules(stream: IO[bytes]) -> Iterator[str]:
    for _ in range(MOST_PICKLES):
        strings: list[str] = []
        memo: dict[int, str] = {}
        count, last = 0, ""
        try:
            for operation, argument, position in pickletools.genops(stream):
                name = operation.name
                if name in ("GLOBAL", "INST"):
                    yield str(argument).split(" ")[0]
                elif name == "STACK_GLOBAL":  # the two strings before it
                    yield strings[-2] if len(strings) > 1 else "?"
                elif name == "MEMOIZE" or name.endswith("BINPUT"):
                    memo[count if argument is None else int(argument)], count = last, count + 1
                elif name.endswith("BINGET"):
                    strings.append(memo.get(int(argument or 0), ""))
                last = argument if isinstance(argument, str) else ""
                if last:
                    strings.append(last)
                if position is not None and position > LARGEST_PICKLE:
                    return
        except ValueError:
            return  # the tensors themselves follow, or it is damaged
