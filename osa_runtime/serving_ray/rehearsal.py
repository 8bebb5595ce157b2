"""Loading the models once before Ray is asked to: what is wrong with them is said at once, and in one voice."""

from __future__ import annotations

import asyncio

from osa_runtime.serving.engine import Engine
from osa_runtime.serving.logs import Log
from osa_runtime.serving.settings import ServerSettings


def rehearse(settings: ServerSettings) -> list[str]:
    """The names and versions of the models that load and run; an error for the first that does not."""
    return asyncio.run(_load(settings))


async def _load(settings: ServerSettings) -> list[str]:
    engine = Engine(settings, Log("error"))
    try:
        await engine.repository.load_all()
        return [f"{model.name} (version {model.version_text})" for model in engine.repository.served()]
    finally:
        await engine.close()
