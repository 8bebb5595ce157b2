"""The subject of a verification: an opened artifact or model file, and all that is known about it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from osa_runtime.artifact import MANIFEST_FILE, Artifact, sha256
from osa_runtime.errors import ArtifactError, InputError
from osa_runtime.formats import FORMATS
from osa_runtime.interface import ANY_DTYPE, Interface, TensorSpec
from osa_runtime.manifest import AttentionSettings
from osa_runtime.parity.certificate import Check
from osa_runtime.runtime.device import DeviceSettings
from osa_runtime.runtime.session import Session, load
from osa_runtime.verification.inside.model_parts import ModelParts

UNKNOWN_DEPTH = 64  # for a model file alone: as many matrices as ten layers have


@dataclass(frozen=True)
class Subject:
    """An opened artifact or model file. ``filled`` has the checkpoint's inputs, for a file without types and shapes.

    ``hashes`` are those of the files before they were opened.
    """

    session: Session
    where: DeviceSettings
    hashes: dict[str, str]
    filled: tuple[TensorSpec, ...] = ()

    @classmethod
    def open(cls, path: Path, where: DeviceSettings) -> Subject:
        """Open the artifact, even if its files are not those that were exported: ``check_files`` reports that."""
        hashes = file_hashes(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the certificate has the note on a fallback
            session = load(
                path,
                where.device,
                threads=where.threads,
                allow_fallback=where.allow_fallback,
                check_hash=False,
                runtime=where.runtime,
                cache=False,
            )
        return cls(session, where, hashes)

    @property
    def artifact(self) -> Artifact | None:
        return self.session.artifact

    @property
    def format(self) -> str:
        return self.session.format

    @property
    def dtype(self) -> str:
        if self.artifact is not None:
            return self.artifact.manifest.dtype
        types = {spec.dtype for spec in (*self.session.inputs, *self.session.outputs)}
        return "fp16" if "float16" in types else "fp32"

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.filled or self.session.inputs

    @property
    def osa(self) -> AttentionSettings | None:
        return self.artifact.manifest.osa if self.artifact is not None else None

    @property
    def depth(self) -> int:
        return (self.artifact.manifest.depth if self.artifact is not None else None) or UNKNOWN_DEPTH

    @property
    def parameters(self) -> int | None:
        return self.artifact.manifest.parameters if self.artifact is not None else None

    @property
    def largest_norm(self) -> float | None:
        """The limit of ‖S‖ with a fixed number of squarings."""
        return self.range_of_norms if self.osa is not None and self.osa.evaluation.is_fixed else None

    @property
    def range_of_norms(self) -> float | None:
        """The largest ‖S‖ that the attention represents, with squarings of either kind."""
        return None if self.osa is None else self.osa.largest_norm

    @property
    def interface(self) -> Interface:
        """The interface from which inputs can be made."""
        if any(spec.dtype == ANY_DTYPE for spec in self.inputs):
            raise InputError(
                f"{self.session.path} alone does not say the types and shapes of its inputs; verify the folder that it "
                "was exported to, or pass its checkpoint with against=FOLDER, or inputs of your own."
            )
        return replace(self.session.interface, inputs=self.inputs)

    def model_parts(self) -> ModelParts:
        found: ModelParts = FORMATS[self.format].part("model_parts")(self.session, self.where.threads)
        return found

    def describe(self) -> dict[str, Any]:
        placement = self.session.placement
        return {
            "name": self.session.path.parent.name if self.artifact is not None else self.session.path.name,
            "format": self.format,
            "dtype": self.dtype,
            "osa": {} if self.osa is None else asdict(self.osa),
            "inputs": [str(spec) for spec in self.session.inputs],
            "outputs": [str(spec) for spec in self.session.outputs],
            "files": self.hashes,
            "source": self.artifact.manifest.source if self.artifact is not None else {},
            "placement": {"device": placement.device, "provider": placement.provider, "note": placement.note},
        }

    def changes(self) -> Iterator[Check]:
        """Return a failed check if the files are no longer those that were opened."""
        now = file_hashes(self.artifact.folder if self.artifact is not None else self.session.path)
        for name in sorted(name for name in {*now, *self.hashes} if now.get(name) != self.hashes.get(name)):
            yield Check("files", False, f"{name} was changed while it was being verified; verify it again")


def file_hashes(path: Path) -> dict[str, str]:
    """The hashes of all existing files by name: for a folder, the manifest and the files that it lists."""
    if not path.is_dir():
        return {path.name: sha256(path)} if path.is_file() else {}
    artifact = Artifact.open(path)
    listed = [name for name in artifact.manifest.files if Path(name).name == name and (path / name).is_file()]
    return {MANIFEST_FILE: artifact.manifest_sha256} | {name: sha256(path / name) for name in listed}


def check_files(path: Path, name: str = "files") -> Check:
    """Check that the files of an exported folder have the hashes of its manifest."""
    if not path.is_dir():
        return Check(name, True, "a model file alone: there is no manifest to compare it with")
    try:
        Artifact.open(path).check_files()
    except ArtifactError as error:
        return Check(name, False, str(error))
    return Check(name, True, "every file has the hash in the manifest")


def check_precision(subject: Subject) -> Iterator[Check]:
    """Return a failed check if the manifest calls the artifact quantised and no weight has 8 bits."""
    if subject.dtype not in ("w8", "w8a8"):
        return
    from onnx import TensorProto

    from osa_runtime.onnx_files import read_onnx

    types = {tensor.data_type for tensor in read_onnx(subject.session.path).graph.initializer}
    if not types & {TensorProto.INT8, TensorProto.UINT8}:
        text = f"the manifest says {subject.dtype}, but no weight in the file has 8 bits"
        yield Check("precision", False, text)
