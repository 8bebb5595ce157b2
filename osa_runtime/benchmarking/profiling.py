"""One profiled series of runs, apart from the timed ones: writing the trace slows every node down."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from osa_runtime.atomic import atomic_file
from osa_runtime.benchmarking.node_profile import NodeProfile, read_profile
from osa_runtime.benchmarking.request import Request
from osa_runtime.runtime.session import load

RUNS, WARM_UP = 20, 3

Array = NDArray[Any]


def profile_artifact(request: Request, feeds: Mapping[str, Array], trace: Path) -> NodeProfile:
    """The profile; ONNX Runtime's own trace, which browsers and Perfetto draw, is written to ``trace``."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "trace"
        with load(request.artifact, request.device, threads=request.threads, profile=prefix) as session:
            for _ in range(WARM_UP + RUNS):
                session.run(feeds)
            written = session.end_profile()
        profile = read_profile(written, RUNS, WARM_UP)
        with atomic_file(trace) as temporary:
            shutil.copyfile(written, temporary)
    return profile
