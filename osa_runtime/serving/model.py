"""A model that is being served: an open session, its queue, and what the protocol says of it."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from osa_runtime.artifact import MANIFEST_FILE, Artifact, Manifest
from osa_runtime.errors import ArtifactError
from osa_runtime.parity.certificate import CERTIFICATE_FILE
from osa_runtime.runtime.interface import Interface, manifest_interface
from osa_runtime.runtime.session import Session, load
from osa_runtime.serving.batch_plan import BatchPlan
from osa_runtime.serving.batcher import Batcher
from osa_runtime.serving.certificates import check_certificate, layer_summary
from osa_runtime.serving.job import Job
from osa_runtime.serving.messages import Array
from osa_runtime.serving.refusals import BadRequest
from osa_runtime.serving.settings import BatchSettings, ServerSettings
from osa_runtime.serving.statistics import ModelStatistics

WARM_UP_ROWS = (1, 2)


@dataclass(frozen=True)
class OpenedModel:
    """A session that has been checked and warmed, in whatever thread; it takes no requests yet."""

    name: str
    version: int
    folder: Path
    fingerprint: str
    session: Session
    manifest: Manifest
    interface: Interface
    plan: BatchPlan
    layers: list[dict[str, Any]]  # their orthogonality, from the certificate


def open_model(name: str, version: int, folder: Path, settings: ServerSettings) -> OpenedModel:
    fingerprint = read_fingerprint(folder)
    artifact = Artifact.open(folder)
    if artifact.manifest.format != "onnx":
        raise ArtifactError(
            f"{folder} is of the format {artifact.manifest.format}, which is a program; only ONNX models are served. "
            "Export it again with --format onnx."
        )
    if settings.require_certificate:
        check_certificate(artifact)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the note on a fallback goes to the log
        session = load(
            folder,
            settings.device,
            threads=settings.model_threads,
            allow_fallback=settings.allow_fallback,
            count_squarings=True,
        )
    interface = manifest_interface(artifact.manifest, str(folder / MANIFEST_FILE))
    plan, layers = BatchPlan(interface), layer_summary(artifact)
    opened = OpenedModel(name, version, folder, fingerprint, session, artifact.manifest, interface, plan, layers)
    _warm_up(opened)
    return opened


def read_fingerprint(folder: Path) -> str:
    """What changes whenever the artifact does: its manifest holds the hashes of all files but the certificate's."""
    digest = hashlib.sha256()
    try:
        digest.update((folder / MANIFEST_FILE).read_bytes())
        with contextlib.suppress(FileNotFoundError):
            digest.update((folder / CERTIFICATE_FILE).read_bytes())
    except OSError as error:
        raise ArtifactError(f"{folder / MANIFEST_FILE} cannot be read: {error}") from error
    return digest.hexdigest()


class ServedModel:
    def __init__(self, opened: OpenedModel, settings: BatchSettings, book: ModelStatistics) -> None:
        self.name, self.version, self.folder = opened.name, opened.version, opened.folder
        self.version_text = str(opened.version)
        self.fingerprint = opened.fingerprint
        self.manifest, self.interface, self.plan = opened.manifest, opened.interface, opened.plan
        self.session, self.layers = opened.session, opened.layers
        self.book = book
        inputs = {spec.name for spec in opened.interface.inputs}
        self._id_ranges = {name: limits for name, limits in opened.manifest.values.items() if name in inputs}
        # the range of the axis too: batches are joined from checked requests and are not checked again
        most = min(settings.max_batch, _batch_range(opened)[1])
        self.max_batch = most if opened.plan.can_batch else 0
        self.batcher = Batcher(
            opened.name, opened.session.run_checked, opened.plan, replace(settings, max_batch=most), book
        )
        self.output_names = frozenset(spec.name for spec in opened.interface.outputs)

    def job(self, feeds: dict[str, Array], on_done: Callable[[Job], None], **times: Any) -> Job:
        """A request that fits the model; what does not is an InputError."""
        feeds = self.plan.with_mask(feeds)
        arrays = self.session.check(feeds)
        self._check_ids(arrays)
        if self.session.calibrated and self.session.calibrated.beyond(arrays):
            self.book.beyond_calibration += 1
        extent = self.plan.extent(arrays)
        if self.max_batch and extent.rows > self.max_batch:
            raise BadRequest(
                f"The request has {extent.rows} rows; inference request batch-size must be <= {self.max_batch} "
                f"for {self.name!r}."
            )
        return Job(arrays, extent, on_done, **times)

    def _check_ids(self, arrays: dict[str, Array]) -> None:
        """Ids beyond the model's table would fail in the middle of a batch."""
        for name, limits in self._id_ranges.items():
            array = arrays[name]
            low, high = int(array.min()), int(array.max())
            if low < limits.get("min", low) or high > limits.get("max", high):
                raise BadRequest(f"Input {name} holds ids from {low} to {high}; the model knows {limits}.")

    async def close(self) -> None:
        """Answer what is queued, then give the memory back."""
        await self.batcher.close()
        self.session.close()


def _warm_up(opened: OpenedModel) -> None:
    """The first runs allocate and choose kernels; no client shall wait for that."""
    least, most = _batch_range(opened)
    for rows in sorted({min(max(rows, least), most) for rows in WARM_UP_ROWS}):
        sizes = {str(opened.plan.batch_axis): rows}
        feeds = {
            spec.name: np.ones([_warm_size(axis, sizes, opened.interface) for axis in spec.shape], spec.dtype)
            for spec in opened.interface.inputs
        }
        opened.session.run(feeds)
    if opened.session.squarings is not None:
        opened.session.squarings.forget()


def _batch_range(opened: OpenedModel) -> tuple[int, int]:
    """The least and the most rows that the model takes."""
    if not opened.plan.can_batch:
        return 1, 1
    limits = opened.interface.axes.get(str(opened.plan.batch_axis), {})
    return max(1, limits.get("min", 1)), limits.get("max", sys.maxsize)


def _warm_size(axis: int | str, sizes: dict[str, int], interface: Interface) -> int:
    if isinstance(axis, int):
        return axis
    return sizes.get(axis, max(1, interface.axes.get(axis, {}).get("min", 1)))
