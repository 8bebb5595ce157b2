"""The models that are served now: loading, swapping and unloading without losing a request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osa_runtime.errors import ArtifactError, OsaError
from osa_runtime.serving.engine.model import ServedModel, open_model, read_fingerprint
from osa_runtime.serving.engine.model_folders import VERSION, ModelFolders, Versions
from osa_runtime.serving.engine.statistics import Book
from osa_runtime.serving.logs import Log
from osa_runtime.serving.refusals import LONGEST_NAME, BadRequest, NotFound
from osa_runtime.serving.settings import ServerSettings

READY, UNAVAILABLE = "READY", "UNAVAILABLE"


@dataclass
class Entry:
    """One model: its versions that take requests, newest last, and why others do not."""

    models: dict[int, ServedModel] = field(default_factory=dict)
    newest: ServedModel | None = None
    failures: dict[int, str] = field(default_factory=dict)
    seen: dict[int, str] = field(default_factory=dict)  # what the last attempt to load found on the disk
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    wanted: bool = True  # false after an unload, so that the watcher leaves it alone

    def put(self, models: dict[int, ServedModel]) -> None:
        self.models = dict(sorted(models.items()))
        self.newest = next(reversed(self.models.values())) if self.models else None


class Repository:
    def __init__(self, settings: ServerSettings, folders: ModelFolders, book: Book, log: Log) -> None:
        self._settings, self._folders, self._book, self._log = settings, folders, book, log
        self._entries: dict[str, Entry] = {}
        self._retiring: set[asyncio.Task[None]] = set()

    def find(self, name: str, version: str = "") -> ServedModel:
        """The model that takes a request; without a version the newest."""
        entry = self._entries.get(name)
        if entry is None or entry.newest is None:
            raise NotFound(f"Request for unknown model: {name[:LONGEST_NAME]!r} is not found")
        if not version:
            return entry.newest
        if not VERSION.fullmatch(version):
            raise BadRequest(f"failed to get model version from specified version string {version[:40]!r}")
        model = entry.models.get(int(version))
        if model is None:
            raise NotFound(f"Request for unknown model: {name[:LONGEST_NAME]!r} version {version} is not found")
        return model

    def knows(self, name: str) -> bool:
        """True if there is or was such a model; it may be unloaded."""
        return name in self._entries

    def served(self) -> list[ServedModel]:
        return [model for _, entry in sorted(self._entries.items()) for model in entry.models.values()]

    async def index(self, ready_only: bool = False) -> list[dict[str, str]]:
        """Every model on the disk or in memory, its state, and why it is not ready."""
        on_disk = await asyncio.to_thread(self._folders.listing)
        rows: list[dict[str, str]] = []
        for name in sorted({*on_disk, *self._entries}):
            entry = self._entries.get(name, Entry())
            rows += [_row(name, version, READY, "") for version in entry.models]
            if not ready_only:
                absent = [version for version in on_disk.get(name, {}) if version not in entry.models]
                rows += [_row(name, v, UNAVAILABLE, entry.failures.get(v, "unloaded")) for v in sorted(absent)]
        return rows

    async def load_all(self, unloaded: frozenset[str] = frozenset()) -> None:
        self._entries |= {name: Entry(wanted=False) for name in unloaded}
        for name in self._folders.names():
            if name not in unloaded:
                await self.load(name)

    async def load(self, name: str) -> None:
        """Open and warm up the newest versions on the disk, then switch to them."""
        versions = self._folders.versions(name)
        if not versions:
            raise NotFound(
                f"failed to load {name[:LONGEST_NAME]!r}, failed to poll from model repository: no such model"
            )
        entry = self._entries.setdefault(name, Entry())
        async with entry.lock:
            entry.wanted = True
            await self._renew(name, entry, versions)

    async def _renew(self, name: str, entry: Entry, versions: Versions) -> None:
        chosen = self._newest(versions)
        entry.seen = await asyncio.to_thread(_fingerprints, chosen)
        entry.failures = {}
        models: dict[int, ServedModel] = {}
        for version, folder in chosen.items():
            try:
                models[version] = await self._open(name, version, folder, entry)
            except OsaError as error:
                entry.failures[version] = str(error)
                self._log.error("model cannot be loaded", model=name, version=version, reason=str(error))
        if entry.failures:  # the versions that served until now go on serving
            models = entry.models | models
        self._swap(entry, models)
        for reason in entry.failures.values():
            raise ArtifactError(f"failed to load {name!r}: {reason}")

    def _newest(self, versions: Versions) -> Versions:
        return dict(sorted(versions.items())[-self._settings.versions :])

    async def _open(self, name: str, version: int, folder: Path, entry: Entry) -> ServedModel:
        present = entry.models.get(version)
        if present is not None and present.fingerprint == entry.seen[version]:
            return present
        model = await asyncio.to_thread(open_model, name, version, folder, self._settings)
        model.start(self._book[name, version])
        placement = model.session.placement
        self._log.info("model loaded", model=name, version=version, device=placement.device, note=placement.note)
        return model

    def _swap(self, entry: Entry, models: dict[int, ServedModel]) -> None:
        """Send new requests to the new models; the old ones finish theirs, then close."""
        old = [model for model in entry.models.values() if model not in models.values()]
        entry.put(models)
        for model in old:
            task = asyncio.get_running_loop().create_task(self._retire(model))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def _retire(self, model: ServedModel) -> None:
        await model.close()
        self._log.info("model unloaded", model=model.name, version=model.version)

    async def unload(self, name: str) -> None:
        entry = self._entries.get(name)
        if entry is None or not entry.models:
            raise NotFound(f"failed to unload {name[:LONGEST_NAME]!r}: the model is not loaded")
        async with entry.lock:
            entry.wanted = False
            self._swap(entry, {})

    async def refresh(self) -> None:
        """Load new and changed models, for the watcher; failures are logged."""
        for name in self._folders.names():
            entry = self._entries.get(name)
            if entry is None or entry.wanted:
                try:
                    if entry is None or await asyncio.to_thread(self._changed, name, entry):
                        await self.load(name)
                except OsaError as error:
                    self._log.warning("reload failed; the old version serves on", model=name, reason=str(error))

    def _changed(self, name: str, entry: Entry) -> bool:
        """True if the files differ from those of the last load; a folder that is gone does not count."""
        found = _fingerprints(self._newest(self._folders.versions(name)))
        return bool(found) and found != entry.seen

    async def close(self) -> None:
        for entry in self._entries.values():
            self._swap(entry, {})
        while self._retiring:
            await asyncio.gather(*self._retiring)


def _row(name: str, version: int, state: str, reason: str) -> dict[str, str]:
    return {"name": name, "version": str(version), "state": state, "reason": reason}


def _fingerprints(versions: Versions) -> dict[int, str]:
    return {version: read_fingerprint(folder) for version, folder in versions.items()}


def check_load_parameters(parameters: dict[str, Any]) -> None:
    """Refuse files and configurations, which Triton accepts here: models come from the disk of this server only."""
    if parameters:
        names = ", ".join(sorted(parameters))[:LONGEST_NAME]
        raise BadRequest(f"A load with the parameters {names} is not supported; put the artifact into the repository.")
