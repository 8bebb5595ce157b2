"""What would reach one replica of several, and so be half done or half told. It is refused with 501."""

from __future__ import annotations

import re

from osa_runtime.serving.refusals import Unsupported

LOADING = re.compile(r"/v2/repository/models/[^/]+/(load|unload)")
COUNTING = re.compile(r"/metrics|/v2/models/stats|/v2/models/[^/]+(/versions/[^/]+)?/stats")
LOADING_CALLS = frozenset({"RepositoryModelLoad", "RepositoryModelUnload"})
COUNTING_CALLS = frozenset({"ModelStatistics"})


def check_path(path: str) -> None:
    if LOADING.fullmatch(path):
        raise _loading()
    if COUNTING.fullmatch(path):
        raise _counting()


def check_call(name: str) -> None:
    if name in LOADING_CALLS:
        raise _loading()
    if name in COUNTING_CALLS:
        raise _counting()


def _loading() -> Unsupported:
    return Unsupported(
        "A load or unload would reach one replica of this Ray Serve application; deploy the application again instead."
    )


def _counting() -> Unsupported:
    return Unsupported(
        "One replica of this Ray Serve application cannot count for all; read Ray's own metrics, which have every one."
    )
