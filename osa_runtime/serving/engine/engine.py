"""The server without a network: what REST and gRPC both call."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable
from typing import Any

from osa_runtime.errors import ArtifactError, OsaError
from osa_runtime.serving.engine.execution import Job, Tracing
from osa_runtime.serving.engine.limits import Connections, LargeRequests
from osa_runtime.serving.engine.messages import InferenceRequest, InferenceResponse
from osa_runtime.serving.engine.model import ServedModel
from osa_runtime.serving.engine.model_folders import ModelFolders
from osa_runtime.serving.engine.repository import Repository
from osa_runtime.serving.engine.siblings import Answer, Channel
from osa_runtime.serving.engine.statistics import Book, ModelStatistics, Snapshot, together
from osa_runtime.serving.logs import Log
from osa_runtime.serving.refusals import BadRequest, Refusal, as_refusal
from osa_runtime.serving.settings import ServerSettings

Watch = Callable[[Callable[[], None]], None]


class Engine:
    lacks: frozenset[str] = frozenset()  # extensions of the protocol

    def __init__(self, settings: ServerSettings, log: Log, siblings: Channel | None = None) -> None:
        self.settings = settings
        self._siblings = siblings
        self.log = log
        self.book = Book(ModelStatistics)
        folders = ModelFolders(settings.artifacts, settings.repository)
        self.repository = Repository(settings, folders, self.book, log)
        self.tracing = Tracing()
        self.connections = Connections(settings.limits.connections)
        self.large = LargeRequests(settings.limits.body)
        self.stopping = False  # no longer ready, but requests are still answered

    @property
    def ready(self) -> bool:
        return not self.stopping and bool(self.repository.served())

    def own_snapshot(self) -> Snapshot:
        """The figures of this process."""
        taken = Snapshot(dict(self.book), connections=self.connections.open)
        for model in self.repository.served():
            key = model.name, model.version
            taken.queued[key] = model.batcher.queued
            taken.running[key] = model.batcher.running
            counts = model.session.squarings
            if counts is not None:
                taken.latest |= {(key, layer): count for layer, count in counts.latest.items()}
                taken.most |= {(key, layer): count for layer, count in counts.most.items()}
        return taken

    async def snapshot(self) -> Snapshot:
        """The figures of this process and of its siblings together."""
        total = self.own_snapshot()
        for answer in await self._ask_others("snapshot", total):
            if answer.problem is None:
                total = together(total, answer.value)
            else:
                self.log.warning("figures are missing", reason=answer.problem)
        return total

    async def totals(self) -> Snapshot:
        """The figures of the whole server, as numbers."""
        return await self.snapshot()

    async def load(self, name: str) -> None:
        await self.repository.load(name)
        await self._tell("load", name)

    async def unload(self, name: str) -> None:
        await self.repository.unload(name)
        await self._tell("unload", name)

    async def _tell(self, what: str, name: str) -> None:
        """Load or unload in all workers; the caller gets an error if one of them fails."""
        for answer in await self._ask_others(what, name):
            if answer.problem is not None:
                raise ArtifactError(f"failed to {what} {name!r} in another worker: {answer.problem}")

    async def _ask_others(self, what: str, argument: Any) -> list[Answer]:
        """The answers of all other running workers."""
        return (await self._siblings.ask(what, argument)).value or [] if self._siblings else []

    @property
    def largest_body(self) -> int:
        """The largest request of any model in bytes; a repository may receive larger models later."""
        sizes = [model.limits.body for model in self.repository.served()]
        return max(sizes) if sizes and self.settings.repository is None else self.settings.limits.body

    async def infer(
        self, request: InferenceRequest, *, alone: bool = False, watch: Watch = lambda _: None
    ) -> InferenceResponse:
        """Queue a request and wait for its answer; a refusal is raised. The request leaves the queue
        when the caller is cancelled or the client disconnects; ``watch`` receives what to call then.

        ``alone`` says that no other request can have arrived, so that a short run need not wait for one.
        """
        model = self.repository.find(request.model, request.version)
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        job = self._submit(model, request, answered, alone)
        try:
            if not answered.done():
                watch(job.cancel)
            await answered
        except asyncio.CancelledError:
            job.cancel()
            raise
        finally:
            refusal = self._conclude(model, request, job)
        if refusal is not None:
            raise refusal
        return InferenceResponse(model.name, model.version_text, request.id, job.outputs, model.manifest.class_names)

    def _submit(
        self, model: ServedModel, request: InferenceRequest, answered: asyncio.Future[None], alone: bool
    ) -> Job:
        arrived = time.perf_counter()
        longest = self.settings.batching.timeout

        def on_done(_: Job) -> None:
            if not answered.done():
                answered.set_result(None)

        try:
            _check_outputs(model, request)
            deadline = arrived + min(request.timeout or longest, longest)
            allowed = request.allows_nonfinite
            job = model.job(request.inputs, on_done, arrived=arrived, deadline=deadline, allow_nonfinite=allowed)
            model.batcher.submit(job, alone=alone)
        except OsaError as error:
            refusal = as_refusal(error)
            model.book.add_failure(time.perf_counter() - arrived, refusal.status)
            raise refusal from None
        return job

    def _conclude(self, model: ServedModel, request: InferenceRequest, job: Job) -> Refusal | None:
        """Log and count a finished request, with the reason if it was refused."""
        if self.log.requests or self.tracing.active:
            self._report(model, request, job)
        if job.error is None:
            return None
        if not isinstance(job.error, OsaError):
            text = "".join(traceback.format_exception(job.error))
            self.log.error("request failed unexpectedly", model=model.name, id=request.id, traceback=text)
        refusal = as_refusal(job.error)
        model.book.add_failure(time.perf_counter() - job.arrived, refusal.status)
        return refusal

    def _report(self, model: ServedModel, request: InferenceRequest, job: Job) -> None:
        seconds = time.perf_counter() - job.arrived
        status = 200 if job.error is None else as_refusal(job.error).status
        self.tracing.record(model.name, model.version_text, request, job, seconds, status)
        if self.log.requests:
            self.log.info(
                "request",
                model=model.name,
                version=model.version_text,
                id=request.id or None,
                rows=job.extent.rows,
                milliseconds=round(seconds * 1e3, 3),
                status=status,
                error=str(job.error) if job.error else None,
            )

    async def close(self) -> None:
        self.stopping = True
        await self.repository.close()
        self.large.close()


def _check_outputs(model: ServedModel, request: InferenceRequest) -> None:
    for output in request.outputs:
        if output.name not in model.output_names:
            has = ", ".join(str(spec) for spec in model.interface.outputs)
            raise BadRequest(f"unexpected inference output {output.name!r} for model {model.name!r}; it has {has}.")
