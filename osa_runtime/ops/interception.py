"""A seam for exporters: let a graph show one opaque node where eager would compute.

An exporter that has its own definition of the operator installs a function for the time of a trace; it receives
q, k, v, scale, mask and the ``ExponentialMethod`` of a call, and returns the node's output. A second function may do
the same for whole layers.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from osa_runtime.exponential import ExponentialMethod

Replacement = Callable[..., Tensor]
LayerReplacement = Callable[..., Tensor | None]

# A plain list with the owning thread of each entry: torch.compile can trace a look at it, not at a ContextVar.
_active: list[tuple[int, Replacement | None, LayerReplacement | None]] = []


@contextlib.contextmanager
def intercept(replacement: Replacement | None, layer: LayerReplacement | None = None) -> Iterator[None]:
    """While active, ``orthogonal_attention`` returns in this thread what ``replacement`` makes of its arguments.

    ``layer`` does the same for ``OrthogonalSelfAttention``: it receives the input, the packed and the output weight,
    the scale, the mask and the method, and returns None for a layer that should call ``orthogonal_attention``. Without
    either, layers call ``orthogonal_attention``, and that is computed as always.
    """
    entry = (threading.get_ident(), replacement, layer)
    _active.append(entry)
    try:
        yield
    finally:
        _active.remove(entry)


def intercepted(*arguments: Any) -> Tensor | None:
    """The replacement's output, or None if none is active."""
    found = _innermost()
    if found is None or found[0] is None:
        return None
    return found[0](*arguments[:5], ExponentialMethod(*arguments[5:]))


def intercepted_layer(*arguments: Any) -> Tensor | None:
    """The output of the replacement of a layer, or None if there is none for it."""
    found = _innermost()
    return None if found is None or found[1] is None else found[1](*arguments)


def is_intercepted() -> bool:
    return _innermost() is not None


def _innermost() -> tuple[Replacement | None, LayerReplacement | None] | None:
    for owner, replacement, layer in reversed(_active) if _active else ():
        if owner == threading.get_ident():
            return replacement, layer
    return None
