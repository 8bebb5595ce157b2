"""A Ray Serve application from exported folders.

OUT/osa-package.json           what was packed; it tells a folder that we wrote from any other
OUT/serve.json                 for ``serve deploy`` and ``serve run``
OUT/models/NAME/VERSION/       the artifacts, as they were exported
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from osa_runtime import __version__
from osa_runtime.atomic import atomic_folder, check_replaceable
from osa_runtime.packaging.packed_artifacts import MARKER, check_apart, copy_artifact, name_artifacts, open_onnx
from osa_runtime.packaging.ray_config import RayAddresses, config_text
from osa_runtime.serving.engine import Engine
from osa_runtime.serving.logs import Log
from osa_runtime.serving.settings import ServerSettings
from osa_runtime.serving_ray.options import RayOptions
from osa_runtime.serving_ray.packed_models import packed_models

CONFIG, MODELS = "serve.json", "models"


@dataclass(frozen=True)
class PackedApplication:
    """``models`` have their versions."""

    config: Path
    models: list[str]


def package_ray(
    artifacts: Sequence[Path],
    out: Path,
    options: RayOptions | None = None,
    addresses: RayAddresses | None = None,
    *,
    name: str | None = None,
    version: int = 1,
    replace: bool = False,
) -> PackedApplication:
    """Write the application in one step. The server's ``repository`` in ``options`` is the path that ``out/models``
    will have on the machines of the cluster."""
    options = options or RayOptions(ServerSettings(repository=out.absolute() / MODELS))
    named = name_artifacts(artifacts, name, "Ray Serve")
    check_replaceable(out, replace=replace, marker=MARKER)
    check_apart(out, artifacts)
    with atomic_folder(out, replace=replace, marker=MARKER) as temporary:
        models = temporary / MODELS
        for model, folder in named.items():
            artifact = open_onnx(folder)
            (models / model / str(version)).mkdir(parents=True)
            copy_artifact(artifact, models / model / str(version))
        shown = asyncio.run(_rehearse(models, options.server))
        options = dataclasses.replace(options, packed=packed_models(models))
        (temporary / CONFIG).write_text(config_text(options, addresses or RayAddresses()), encoding="utf-8")
        (temporary / MARKER).write_text(_description(options), encoding="utf-8")
    return PackedApplication(out / CONFIG, shown)


async def _rehearse(models: Path, server: ServerSettings) -> list[str]:
    """Load and run each model once, as a replica will, but on the CPU of this machine and without the cluster's keys.
    Return their names and versions."""
    here = dataclasses.replace(
        server,
        repository=models.absolute(),
        device="cpu",
        threads=1,
        require_certificate=server.wants_certificate,
        trusted_keys=(),
    )
    engine = Engine(here, Log("error"))
    try:
        await engine.repository.load_all()
        return [f"{model.name} (version {model.version_text})" for model in engine.repository.served()]
    finally:
        await engine.close()


def _description(options: RayOptions) -> str:
    content = {"osa-runtime": __version__, "target": "ray", "models": options.packed}
    return json.dumps(content, indent=2) + "\n"
