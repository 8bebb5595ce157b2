"""Exports are deterministic, as tests/exporters/test_determinism.py shows: each is made once in a run of the tests,
by whichever process needs it first."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import inspect
import shutil
import typing
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from osa_runtime import exporters
from osa_runtime.artifact import Artifact
from osa_runtime.exporters.settings import ExportSettings
from osa_runtime.models.checkpoint import checkpoint_folder

_home: list[Path] = []  # where the exports of this run are, once it has such a place


@contextlib.contextmanager
def kept_in(home: Path) -> Iterator[None]:
    """Within, exports are kept there, and verifications take the fresh export that they ask for from there, too."""
    from unittest import mock

    from torch._dynamo import config
    from torch._export import utils
    from torch._export.serde import serialize
    from torch.onnx._internal.exporter import _registration

    from osa_runtime.verification import expectation

    home.mkdir(exist_ok=True)
    _home.append(home)
    # torch reads its operators and their signatures anew in every export, for a third of the time, and type hints for
    # every node of a .pt2 file, for another third. Its cache of what operators return pays for deep models; those of
    # the tests are small, and without it a graph of theirs takes a quarter less, with the same bytes.
    operators = functools.cache(_registration.onnxscript_apis.get_torchlib_ops)
    signatures = functools.cache(_registration._schemas.op_signature_from_function)
    named = functools.cache(utils._materialize_cpp_cia_ops)
    hints = functools.cache(lambda cls: typing.get_type_hints(cls, globalns=vars(serialize.schema)))
    cached = SimpleNamespace(**vars(typing) | {"get_type_hints": lambda cls, globalns: hints(cls)})
    with (
        mock.patch.object(expectation, "export_checkpoint", export_checkpoint),
        mock.patch.object(_registration.onnxscript_apis, "get_torchlib_ops", operators),
        mock.patch.object(_registration._schemas, "op_signature_from_function", signatures),
        mock.patch.object(utils, "_materialize_cpp_cia_ops", named),
        mock.patch.object(serialize, "typing", cached),
        mock.patch.object(config, "fake_tensor_cache_enabled", False),
    ):
        yield
    _home.remove(home)


def export_checkpoint(checkpoint: str | Path, out: str | Path, *, checked: bool = True, **options: Any) -> Artifact:
    """Export like the package, or copy the export of an earlier call with the same weights and options."""
    if not _home:
        return exporters.export_checkpoint(checkpoint, out, checked=checked, **options)
    kept = _home[-1] / _key(Path(checkpoint), options)
    with open(f"{kept}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            exporters.export_checkpoint(checkpoint, kept, checked=checked, **options)
    shutil.copytree(kept, out)
    return Artifact.open(out)


def _key(checkpoint: Path, options: dict[str, Any]) -> str:
    files = sorted(path for path in checkpoint_folder(checkpoint).iterdir() if path.is_file())
    contents = [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
    defaults = inspect.signature(exporters.export_checkpoint).parameters.items()
    usual = dataclasses.asdict(ExportSettings()) | {name: parameter.default for name, parameter in defaults}
    asked = sorted((name, value) for name, value in options.items() if value != usual.get(name))
    return hashlib.sha256(repr([contents, asked]).encode()).hexdigest()
