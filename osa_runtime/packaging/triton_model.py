"""The exported model inside Triton's python backend: checked inputs, shared batches, an error for each bad request.

Triton imports this through the file model.py of a model's version, and calls initialize, execute and finalize.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from osa_runtime.environment import usable_cores
from osa_runtime.errors import InputError, OsaError
from osa_runtime.runtime.input_checks import check_finite_inputs
from osa_runtime.runtime.session import load
from osa_runtime.serving.engine.batch_plan import BatchPlan
from osa_runtime.serving.engine.execution import Job, execute
from osa_runtime.serving.engine.messages import Array


class TritonPythonModel:
    """One instance of the model, in a process of its own."""

    def initialize(self, args: Mapping[str, str]) -> None:
        self._triton = importlib.import_module("triton_python_backend_utils")
        folder = Path(args["model_repository"]) / args["model_version"]
        device = "cpu" if args["model_instance_kind"] == "CPU" else f"cuda:{args['model_instance_device_id']}"
        try:
            self._session = load(folder, device, threads=_threads(json.loads(args["model_config"])))
        except OsaError as error:
            raise self._triton.TritonModelException(str(error)) from error
        manifest = self._session.manifest
        assert manifest is not None  # a folder was loaded, so it has a manifest
        self._interface = manifest.interface
        self._plan = BatchPlan(self._interface)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Return a response for each request: its answer or its error."""
        entries = [self._entry(request) for request in requests]
        for group in self._groups([entry for entry in entries if isinstance(entry, Job)]):
            for job in execute(self._session.run, self._plan, group).again:
                execute(self._session.run, self._plan, [job])
        return [self._response(request, entry) for request, entry in zip(requests, entries, strict=True)]

    def finalize(self) -> None:
        self._session.close()

    def _entry(self, request: Any) -> Job | Exception:
        try:
            return self._job({tensor.name(): tensor.as_numpy() for tensor in request.inputs()})
        except Exception as error:  # noqa: BLE001 - after any error the other requests of the batch are answered
            return error

    def _job(self, tensors: dict[str, Array]) -> Job:
        feeds = self._plan.with_mask(tensors)
        arrays = self._session.check(feeds)
        check_finite_inputs(arrays)
        return Job(arrays, self._plan.extent(arrays), _ignore, arrived=0.0, deadline=math.inf)

    def _groups(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Group requests that may share a run: Triton also joins lengths that are too different to be padded."""
        groups: list[list[Job]] = []
        for job in jobs:
            fitting = (group for group in groups if all(job.extent.fits(other.extent) for other in group))
            home = next(fitting, None) if self._plan.can_batch else None
            if home is None:
                groups.append([job])
            else:
                home.append(job)
        return groups

    def _response(self, request: Any, entry: Job | Exception) -> Any:
        error = entry.error if isinstance(entry, Job) else entry
        if error is not None:
            return self._triton.InferenceResponse(error=self._error(error))
        assert isinstance(entry, Job)
        wanted = request.requested_output_names()
        tensors = [self._triton.Tensor(name, array) for name, array in entry.outputs.items() if name in wanted]
        return self._triton.InferenceResponse(output_tensors=tensors)

    def _error(self, error: Exception) -> Any:
        text = str(error) if isinstance(error, OsaError) else f"{type(error).__name__}: {error}"
        kind = self._triton.TritonError
        return kind(text, kind.INVALID_ARG if isinstance(error, InputError) else kind.INTERNAL)


def _threads(config: Mapping[str, Any]) -> int:
    """The configured threads, or this instance's share of the cores, of which one is left to Triton itself."""
    chosen = config.get("parameters", {}).get("threads", {}).get("string_value")
    if chosen is not None:
        return int(chosen)
    instances = sum(int(group.get("count", 1)) for group in config.get("instance_group", [])) or 1
    cores = usable_cores()
    return max(1, (cores - 1) // instances)


def _ignore(job: Job) -> None:
    """Do nothing when one job is done: Triton waits for the whole batch."""
