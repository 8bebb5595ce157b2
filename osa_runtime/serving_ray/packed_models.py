"""Whether the models on this machine are those that were packed: a machine with others would answer differently."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from osa_runtime.artifact import MANIFEST_FILE, sha256
from osa_runtime.errors import ArtifactError

Packed = Mapping[str, str]


def packed_models(repository: Path) -> dict[str, str]:
    """``NAME/VERSION`` and the hash of its manifest, which holds the hashes of the other files."""
    found = sorted(repository.glob(f"*/*/{MANIFEST_FILE}"))
    return {path.parent.relative_to(repository).as_posix(): sha256(path) for path in found}


def check_packed(repository: Path, expected: Packed) -> None:
    found = packed_models(repository)
    missing, more = expected.keys() - found.keys(), found.keys() - expected.keys()
    changed = {name for name in expected.keys() & found.keys() if found[name] != expected[name]}
    wrong = {"missing": missing, "not packed": more, "changed": changed}
    reasons = [f"{what}: {', '.join(sorted(names))}" for what, names in wrong.items() if names]
    if reasons:
        raise ArtifactError(
            f"{repository} on this machine does not hold the models that were packed ({'; '.join(reasons)}). "
            "Copy the package here again, or deploy the config file that lies in it."
        )
