"""The server without a network: what REST and gRPC both call."""

from __future__ import annotations

import asyncio
import time
import traceback

from osa_runtime.errors import ArtifactError, OsaError
from osa_runtime.serving.engine.execution import Job, Tracing
from osa_runtime.serving.engine.limits import Connections, LargeRequests
from osa_runtime.serving.engine.messages import InferenceRequest, InferenceResponse
from osa_runtime.serving.engine.model import ServedModel
from osa_runtime.serving.engine.model_folders import ModelFolders
from osa_runtime.serving.engine.repository import Repository
from osa_runtime.serving.engine.siblings import Siblings
from osa_runtime.serving.engine.statistics import Snapshot, StatisticsBook
from osa_runtime.serving.logs import Log
from osa_runtime.serving.refusals import BadRequest, Refusal, as_refusal
from osa_runtime.serving.settings import ServerSettings

Answer = InferenceResponse | Refusal


class Engine:
    def __init__(self, settings: ServerSettings, log: Log, siblings: Siblings | None = None) -> None:
        self.settings = settings
        self._siblings = siblings
        self.log = log
        self.book = StatisticsBook()
        folders = ModelFolders(settings.artifacts, settings.repository)
        self.repository = Repository(settings, folders, self.book, log)
        self.tracing = Tracing()
        self.connections = Connections(settings.limits.connections)
        self.large = LargeRequests(settings.limits.body)
        self.stopping = False  # no longer ready, but what comes is still answered

    @property
    def ready(self) -> bool:
        return not self.stopping and bool(self.repository.served())

    def own_snapshot(self) -> Snapshot:
        """The figures of this process."""
        taken = Snapshot(dict(self.book.items()), connections=self.connections.open)
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
        for answer in await self._siblings.ask("snapshot", total) if self._siblings else ():
            if answer.problem is None:
                total = total.plus(answer.value)
            else:
                self.log.warning("figures are missing", reason=answer.problem)
        return total

    async def load(self, name: str) -> None:
        await self.repository.load(name)
        await self._tell("load", name)

    async def unload(self, name: str) -> None:
        await self.repository.unload(name)
        await self._tell("unload", name)

    async def _tell(self, what: str, name: str) -> None:
        """All workers have the same models, or the one who asked hears that they have not."""
        answers = await self._siblings.ask(what, name) if self._siblings else []
        for problem in (answer.problem for answer in answers if answer.problem is not None):
            raise ArtifactError(f"failed to {what} {name!r} in another worker: {problem}")

    @property
    def largest_body(self) -> int:
        """Bytes that a request of any model may have; into a repository, larger models may come."""
        sizes = [model.limits.body for model in self.repository.served()]
        return max(sizes) if sizes and self.settings.repository is None else self.settings.limits.body

    def ask(self, request: InferenceRequest, *, alone: bool = False) -> tuple[Job, asyncio.Future[Answer]]:
        """Queue a request; a refusal at once is raised.

        ``alone`` says that no other request can have come by now, so that a short run need not wait for company.
        """
        model = self.repository.find(request.model, request.version)
        arrived = time.perf_counter()
        longest = self.settings.batching.timeout
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def on_done(job: Job) -> None:
            try:
                answer = self._answer(model, request, job)
            except Exception as error:  # noqa: BLE001 - a fault in counting or tracing leaves nobody waiting
                self.log.error("answer failed unexpectedly", traceback="".join(traceback.format_exception(error)))
                answer = as_refusal(error)
            if not answered.done():
                answered.set_result(answer)

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
        return job, answered

    def _answer(self, model: ServedModel, request: InferenceRequest, job: Job) -> Answer:
        if self.log.requests or self.tracing.active:
            self._report(model, request, job)
        if job.error is None:
            return InferenceResponse(
                model.name, model.version_text, request.id, job.outputs, model.manifest.class_names
            )
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

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """``ask`` for callers that wait; when they are cancelled, the request leaves the queue."""
        job, answered = self.ask(request)
        try:
            answer = await answered
        except asyncio.CancelledError:
            job.cancel()
            raise
        if isinstance(answer, Refusal):
            raise answer
        return answer

    async def close(self) -> None:
        self.stopping = True
        await self.repository.close()
        self.large.close()


def _check_outputs(model: ServedModel, request: InferenceRequest) -> None:
    for output in request.outputs:
        if output.name not in model.output_names:
            has = ", ".join(str(spec) for spec in model.interface.outputs)
            raise BadRequest(f"unexpected inference output {output.name!r} for model {model.name!r}; it has {has}.")
