"""A model that is being served: an open session, its queue, and its description in the protocol."""

from __future__ import annotations

import contextlib
import hashlib
import math
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from osa_runtime.artifact import MANIFEST_FILE, Artifact
from osa_runtime.errors import ArtifactError
from osa_runtime.manifest import Manifest
from osa_runtime.parity.certificate import CERTIFICATE_FILE
from osa_runtime.runtime.input_checks import check_finite_inputs, check_inputs
from osa_runtime.runtime.session import Session, load
from osa_runtime.sample_inputs import sample_inputs, usual_sizes
from osa_runtime.serving.engine.batch_plan import BatchPlan
from osa_runtime.serving.engine.batcher import Batcher
from osa_runtime.serving.engine.execution import Job, all_finite
from osa_runtime.serving.engine.messages import Array
from osa_runtime.serving.engine.model_folders import check_certificate, layer_summary
from osa_runtime.serving.engine.statistics import ModelStatistics
from osa_runtime.serving.refusals import BadRequest
from osa_runtime.serving.settings import ServerSettings

WARM_UP_ROWS = (1, 2)
VALUE_TEXT = 64  # bytes that a value takes in a request at most: as JSON, one on a line
REST_OF_BODY = 64 << 10  # bytes next to the values


def open_model(name: str, version: int, folder: Path, settings: ServerSettings) -> ServedModel:
    fingerprint = read_fingerprint(folder)
    artifact = Artifact.open(folder)
    if artifact.manifest.format != "onnx":
        raise ArtifactError(
            f"{folder} is of the format {artifact.manifest.format}, which is a program; only ONNX models are served. "
            "Export it again with `osa export --format onnx`."
        )
    if settings.wants_certificate:
        check_certificate(artifact, settings.trusted_keys)
    session = _load(artifact, settings)
    model = ServedModel(name, version, fingerprint, session, artifact.manifest, layer_summary(artifact), settings)
    model.warm_up()
    return model


def _load(artifact: Artifact, settings: ServerSettings) -> Session:
    """A session of the files that were checked; a file that changes meanwhile is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the note on a fallback goes to the log
        session = load(
            artifact.folder,
            settings.device,
            threads=settings.model_threads,
            allow_fallback=settings.allow_fallback,
            count_squarings=True,
        )
    now = Artifact.open(artifact.folder)
    if {now.manifest_sha256, session.artifact and session.artifact.manifest_sha256} != {artifact.manifest_sha256}:
        raise ArtifactError(f"{artifact.folder} was changed while it was being loaded; load it again.")
    if settings.wants_certificate:
        now.check_files()  # the hashes were compared before the files were read
    return session


def read_fingerprint(folder: Path) -> str:
    """A hash that changes with the artifact: its manifest holds the hashes of all files but the certificate's."""
    digest = hashlib.sha256()
    try:
        digest.update((folder / MANIFEST_FILE).read_bytes())
        with contextlib.suppress(FileNotFoundError):
            digest.update((folder / CERTIFICATE_FILE).read_bytes())
    except OSError as error:
        raise ArtifactError(f"{error.filename or folder} cannot be read: {error.strerror or error}.") from error
    return digest.hexdigest()


class ServedModel:
    """May be created in any thread; takes requests after ``start`` was called in the event loop.

    ``limits`` are the server's, and no wider than this model's largest request; ``layers`` has their orthogonality,
    from the certificate.
    """

    batcher: Batcher
    book: ModelStatistics

    def __init__(
        self,
        name: str,
        version: int,
        fingerprint: str,
        session: Session,
        manifest: Manifest,
        layers: list[dict[str, Any]],
        settings: ServerSettings,
    ) -> None:
        self.name, self.version, self.version_text, self.fingerprint = name, version, str(version), fingerprint
        self.session, self.manifest, self.layers = session, manifest, layers
        self.interface = manifest.interface
        self.plan = BatchPlan(self.interface)
        # the range of the axis too: batches are joined from checked requests and are not checked again
        most = min(settings.batching.max_batch, self._batch_range()[1])
        self._batching = replace(settings.batching, max_batch=most)
        self.max_batch = most if self.plan.can_batch else 0
        self.limits = replace(settings.limits, body=int(min(settings.limits.body, self._largest_body())))
        optional = self.interface.optional | ({self.interface.mask} if self.interface.mask else set())
        self._valueless = replace(self.interface, values={}, optional=optional)
        self.output_names = frozenset(spec.name for spec in self.interface.outputs)

    def start(self, book: ModelStatistics) -> None:
        self.book = book
        self.batcher = Batcher(self.name, self.session.run_checked, self.plan, self._batching, book)

    def job(
        self, feeds: dict[str, Array], on_done: Callable[[Job], None], *, allow_nonfinite: bool, **times: Any
    ) -> Job:
        """A job for the request; one that does not fit the model is an InputError."""
        feeds = self.plan.with_mask(feeds)
        arrays = self.session.check(feeds)
        if self.session.calibrated and self.session.calibrated.beyond(arrays):
            self.book.beyond_calibration += 1
        extent = self.plan.extent(arrays)
        if not all_finite(arrays):
            if not allow_nonfinite:
                check_finite_inputs(arrays)
            extent = extent._replace(apart=True)  # no other request shares the outputs
        self._check_rows(extent.rows)
        return Job(arrays, extent, on_done, allow_nonfinite=allow_nonfinite, **times)

    def check_shapes(self, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        """Refuse types and shapes that ``job`` would refuse, without the values."""
        arrays = {name: np.broadcast_to(np.zeros((), dtype), shape) for name, (dtype, shape) in tensors.items()}
        self._check_rows(self.plan.rows(check_inputs(arrays, self._valueless)))

    def _check_rows(self, rows: int) -> None:
        if self.max_batch and rows > self.max_batch:
            raise BadRequest(
                f"The request has {rows} rows; inference request batch-size must be <= {self.max_batch} "
                f"for {self.name!r}."
            )

    async def close(self) -> None:
        """Answer what is queued, then release the memory."""
        await self.batcher.close()
        self.session.close()

    def warm_up(self) -> None:
        """Run the model: the first runs allocate memory and choose kernels, which no client should wait for."""
        least, most = self._batch_range()
        for rows in sorted({min(max(rows, least), most) for rows in WARM_UP_ROWS}):
            self.session.run(sample_inputs(self.interface, usual_sizes(self.interface, rows, length=1)))
        if self.session.squarings is not None:
            self.session.squarings.forget()

    def _batch_range(self) -> tuple[int, int]:
        """The least and the most rows that the model takes."""
        axis = self.plan.batch_axis
        if axis is None:
            return 1, 1
        limit = self.interface.limit(axis)
        return self.interface.least(axis), sys.maxsize if limit is None else limit

    def _largest_body(self) -> float:
        """Bytes of the largest request that can be valid; infinite where an axis has no end."""
        ends = {name: limits.get("max", math.inf) for name, limits in self.interface.axes.items()}
        ends[str(self.plan.batch_axis)] = self.max_batch
        shapes = [spec.shape for spec in self.interface.inputs]
        sizes = [[axis if isinstance(axis, int) else ends.get(axis, math.inf) for axis in shape] for shape in shapes]
        return REST_OF_BODY + VALUE_TEXT * sum(math.prod(shape) for shape in sizes)
