"""A Ray Serve application from exported folders.

OUT/osa-package.json           what was packed; it tells a folder that we wrote from any other
OUT/serve.yaml                 for ``serve deploy``
OUT/environment.sh             how Ray is tuned; it is read before ``ray start``
OUT/models/NAME/VERSION/       the artifacts, as they were exported
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from osa_runtime import __version__
from osa_runtime.atomic import atomic_folder, check_replaceable
from osa_runtime.errors import InputError
from osa_runtime.packaging.packed_artifacts import MARKER, check_apart, copy_artifact, name_artifacts, open_onnx
from osa_runtime.packaging.ray_config import RayAddresses, config_text
from osa_runtime.serving_ray.environment import tuning
from osa_runtime.serving_ray.options import RayOptions
from osa_runtime.serving_ray.packed_models import packed_models
from osa_runtime.serving_ray.rehearsal import rehearse

CONFIG, ENVIRONMENT, MODELS = "serve.yaml", "environment.sh", "models"
ENVIRONMENT_HEAD = """# How Ray is tuned for these models. On every machine, before `ray start`: . ./environment.sh
# A variable that is set already keeps its value.
"""


@dataclass(frozen=True)
class PackedApplication:
    """``environment`` is its path on the machines of the cluster; ``models`` have their versions."""

    config: Path
    environment: PurePosixPath
    models: list[str]


def package_ray(
    artifacts: Sequence[Path],
    out: Path,
    options: dict[str, Any] | None = None,
    addresses: RayAddresses | None = None,
    *,
    at: str | None = None,
    name: str | None = None,
    version: int = 1,
    replace: bool = False,
) -> PackedApplication:
    """Write the application in one step. ``options`` are fields of :class:`RayOptions`, ``at`` is where ``out`` will
    be on the machines of the cluster."""
    home = _home(out, at)
    wanted = RayOptions(repository=str(home / MODELS), **(options or {}))
    named = name_artifacts(artifacts, name, "Ray Serve")
    check_replaceable(out, replace=replace, marker=MARKER)
    check_apart(out, artifacts)
    with atomic_folder(out, replace=replace, marker=MARKER) as temporary:
        models = temporary / MODELS
        for model, folder in named.items():
            artifact = open_onnx(folder)
            (models / model / str(version)).mkdir(parents=True)
            copy_artifact(artifact, models / model / str(version))
        shown = _rehearse(models, wanted)
        wanted = dataclasses.replace(wanted, packed=packed_models(models))
        _write(temporary / CONFIG, config_text(wanted, addresses or RayAddresses()))
        _write(temporary / ENVIRONMENT, environment_text(wanted.timeout))
        _write(temporary / MARKER, _description(wanted))
    return PackedApplication(out / CONFIG, home / ENVIRONMENT, shown)


def environment_text(timeout: float) -> str:
    """For any POSIX shell; values may have several lines."""
    lines = [f'[ "${{{name}+set}}" ] || export {name}={shlex.quote(value)}' for name, value in tuning(timeout).items()]
    return ENVIRONMENT_HEAD + "\n".join(lines) + "\n"


def _home(out: Path, at: str | None) -> PurePosixPath:
    home = PurePosixPath(out.absolute() if at is None else at)
    if not home.is_absolute():
        raise InputError(f"--at is {at}, expected an absolute path: replicas run elsewhere.")
    return home


def _rehearse(models: Path, wanted: RayOptions) -> list[str]:
    """As each replica will load them, but on the CPU of this machine and without the cluster's token."""
    here = dataclasses.replace(wanted, repository=str(models.absolute()), device="cpu", token_file=None)
    return rehearse(here.settings())


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _description(options: RayOptions) -> str:
    content = {"osa-runtime": __version__, "target": "ray", "models": dict(options.packed)}
    return json.dumps(content, indent=2) + "\n"
