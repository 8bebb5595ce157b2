"""``load`` opens an exported model of any format, and the :class:`Session` that it returns runs it."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from osa_runtime.artifact import Artifact
from osa_runtime.errors import InputError, RunError
from osa_runtime.formats import FORMATS
from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.manifest import Manifest
from osa_runtime.recognition import NO_MODELS, file_kind, not_an_artifact
from osa_runtime.runtime.device import LoadSettings, Placement, parse_device
from osa_runtime.runtime.input_checks import (
    Array,
    CalibratedRanges,
    QuickCheck,
    check_finite_inputs,
    check_inputs,
    check_values,
    describe_nonfinite,
)

if TYPE_CHECKING:
    from osa_runtime.runtime.onnx_session import Squarings

__all__ = ["Session", "load"]

SUFFIXES = {Path(known.file).suffix: known.name for known in FORMATS.values()}


@dataclass(frozen=True)
class Source:
    """A model file, and the artifact that it belongs to when it was opened as one.

    ``hashed`` says that the artifact's files were found to be those of its manifest.
    """

    path: Path
    format: str
    artifact: Artifact | None = None
    hashed: bool = False

    @property
    def declared(self) -> Interface | None:
        return None if self.artifact is None else self.artifact.manifest.interface


class Session(ABC):
    """A loaded model. Any number of threads may call ``run`` at the same time.

    ``inputs`` and ``outputs`` have names, types and axes, ``placement`` is the actual device, and ``artifact``
    is the exported folder, None for a model file that was opened alone. ``squarings`` counts those of each layer
    if ``load`` was called with ``count_squarings``. ``calibrated.beyond(feeds)`` names the inputs beyond
    the examples of a static quantisation.
    """

    def __init__(
        self, source: Source, interface: Interface, placement: Placement, squarings: Squarings | None = None
    ) -> None:
        self.artifact = source.artifact
        self.path = source.path
        self.format = source.format
        self.placement = placement
        self.squarings = squarings
        self.interface = interface
        self.calibrated = CalibratedRanges(self.manifest)
        self._quick = QuickCheck(interface)
        self._closed = False

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.interface.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.interface.outputs

    @property
    def manifest(self) -> Manifest | None:
        return self.artifact.manifest if self.artifact else None

    def run(self, feeds: Mapping[str, Any], *, check_finite: bool = False) -> dict[str, Array]:
        """Return the outputs by name. ``check_finite`` refuses NaN and Inf, in the inputs and in the outputs."""
        if self._closed:
            raise RunError(f"The session of {self.path} is closed; load the model again.")
        arrays = self.check(feeds)
        if check_finite:
            check_finite_inputs(arrays)
        outputs = self._execute(arrays)
        if check_finite:
            check_finite_outputs(outputs)
        return outputs

    def check(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Return the feeds as arrays that the model takes; the first problem is an InputError."""
        if self._quick.passes(feeds):
            arrays = {spec.name: feeds[spec.name] for spec in self.interface.inputs}
            check_values(arrays, self.interface)
            return arrays
        return check_inputs(feeds, self.interface)

    def run_checked(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """``run`` for arrays that ``check`` returned, or that were joined from such; they are not checked again."""
        return self._execute(arrays)

    @abstractmethod
    def _execute(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """Run checked inputs; any error of the runtime becomes a RunError."""

    def end_profile(self) -> Path:
        """Stop the trace that ``load`` started, and return its file."""
        raise InputError(f"{self.path} was loaded without profile=; load an ONNX model with it.")

    def close(self) -> None:
        """Release the model's memory after the calls under way have ended. Closing twice does no harm."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path} on {self.placement.device}>"


def check_finite_outputs(outputs: Mapping[str, Array]) -> None:
    for name, array in outputs.items():
        broken = describe_nonfinite(array)
        if broken:
            raise RunError(
                f"Output {name} holds {broken}: the inputs or the attention's norms are beyond the range of the model, "
                "or a sequence has no real token. Check the inputs, or export with more squarings."
            )


def load(
    path: str | os.PathLike[str],
    device: str = "cpu",
    *,
    threads: int | None = None,
    allow_fallback: bool = False,
    check_hash: bool = True,
    profile: str | os.PathLike[str] | None = None,
    count_squarings: bool = False,
    runtime: str | None = None,
    cache: bool = True,
) -> Session:
    """Open an exported folder, or a model file alone (.onnx, .pt, .pt2), on ``cpu``, ``cuda`` or ``cuda:1``.

    A device that cannot be used is a DeviceError; with ``allow_fallback`` it is a warning, and the session runs on
    the CPU. A folder whose files are not those that were exported is refused unless ``check_hash`` is false.
    ``profile`` makes ONNX Runtime trace every node, into a file whose name starts so; ``end_profile`` writes it.
    ``count_squarings`` fills ``Session.squarings`` in each run, for ONNX graphs with data-dependent squarings.
    ``runtime`` runs an ONNX model elsewhere, for comparisons: openvino, tract, reference (onnx's evaluator), ort-node.
    ``cache`` lets ONNX models on the CPU start from the copy that an earlier load optimised, in the user's cache folder
    or in $OSA_MODEL_CACHE, which may be "off"; answers are the same to the last bit.
    TorchScript and pt2 files need torch. They are programs: load them only from sources that you trust.
    """
    trace = None if profile is None else Path(profile)
    settings = LoadSettings(parse_device(device), threads, allow_fallback, trace, count_squarings, cache)
    session = _open(_source(Path(path), check_hash), settings, runtime)
    if session.placement.note:
        warnings.warn(session.placement.note, RuntimeWarning, stacklevel=2)
    return session


def _open(source: Source, settings: LoadSettings, runtime: str | None) -> Session:
    if runtime is not None:
        from osa_runtime.runtime.other_runtimes import session_in

        return session_in(runtime, source, settings)
    if settings.profile is not None and source.format != "onnx":
        raise InputError(f"Only ONNX models can be profiled, {source.path} is {source.format}; export it as onnx.")
    session: Session = FORMATS[source.format].part("session")(source, settings)
    return session


def _source(path: Path, check_hash: bool) -> Source:
    if not path.exists():
        raise not_an_artifact(path)
    if path.is_dir():
        artifact = Artifact.open(path)
        if check_hash:
            artifact.check_files()
        return Source(artifact.model_path, artifact.manifest.format, artifact, check_hash)
    if path.suffix not in SUFFIXES or file_kind(path) in NO_MODELS:
        raise not_an_artifact(path)
    return Source(path, SUFFIXES[path.suffix])
