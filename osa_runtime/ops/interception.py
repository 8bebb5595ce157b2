"""A seam for exporters: let a graph show one opaque node where eager would compute.

An exporter that has its own definition of the operator installs a function for the time of a trace; it receives
q, k, v, scale, mask and the ``ExponentialMethod`` of a call, and returns the node's output.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from osa_runtime.exponential import ExponentialMethod

Replacement = Callable[..., Tensor]

# A plain list with the owning thread of each entry: torch.compile can trace a look at it, not at a ContextVar.
_active: list[tuple[int, Replacement]] = []


@contextlib.contextmanager
def intercept(replacement: Replacement) -> Iterator[None]:
    """While active, ``orthogonal_attention`` returns in this thread what ``replacement`` makes of its arguments."""
    entry = (threading.get_ident(), replacement)
    _active.append(entry)
    try:
        yield
    finally:
        _active.remove(entry)


def intercepted(*arguments: Any) -> Tensor | None:
    """The replacement's output, or None if none is active."""
    if _active:
        for owner, replacement in reversed(_active):
            if owner == threading.get_ident():
                return replacement(*arguments[:5], ExponentialMethod(*arguments[5:]))
    return None
