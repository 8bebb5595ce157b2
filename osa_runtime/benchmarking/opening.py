"""The contenders, opened, and the time that opening takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from osa_runtime.artifact import MANIFEST_FILE, sha256
from osa_runtime.errors import MissingDependencyError
from osa_runtime.runtime.session import Session

if TYPE_CHECKING:
    from osa_runtime.benchmarking.eager import EagerModel

T = TypeVar("T")
LOADS, PATIENCE = 3, 6.0


def timed_opening(start: Callable[[], T], loads: int = LOADS) -> tuple[T, float]:
    """Return the result of ``start``, and the median of its seconds.

    The first time, which imports libraries, does not count. More than three loads take no more than some seconds.
    """
    opened, seconds = start(), list[float]()
    while len(seconds) < loads and (len(seconds) < LOADS or sum(seconds) < PATIENCE):
        begin = time.perf_counter()
        opened = start()
        seconds.append(time.perf_counter() - begin)
    return opened, statistics.median(seconds)


def eager_class() -> type[EagerModel]:
    try:
        from osa_runtime.benchmarking.eager import EagerModel
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"The comparison runs the checkpoint in eager PyTorch and needs {error.name}, which is not installed; "
            'pip install "osa-runtime[export]", or leave the checkpoint out.'
        ) from error
    return EagerModel


def describe_session(session: Session, path: Path) -> dict[str, Any]:
    """The artifact, and the device and provider on which it actually runs."""
    placement = session.placement
    return {
        "path": str(path),
        "format": session.format,
        "dtype": session.manifest.dtype if session.manifest else None,
        "sha256": sha256(session.path),
        "bytes": _size_on_disk(session),
        "placement": {
            "requested": placement.requested,
            "device": placement.device,
            "provider": placement.provider,
            "cpu_nodes": list(placement.cpu_nodes) if placement.cpu_nodes is not None else None,
        },
    }


def _size_on_disk(session: Session) -> int:
    """The size of the model, its external weights and the manifest."""
    folder = session.path.parent
    if session.manifest is not None:
        files = [folder / name for name in (*session.manifest.files, MANIFEST_FILE)]
    else:
        files = [session.path, session.path.with_name(f"{session.path.name}.data")]
    return sum(file.stat().st_size for file in files if file.is_file())
