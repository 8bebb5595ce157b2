"""The axis of independent rows and the mask of real tokens, found by trying them on the module.

The inputs are generated from the interface alone, so that a second export of the same module has the same result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from osa_runtime.interface import Interface, Roles, TensorSpec, leading_axis, mask_candidates
from osa_runtime.sample_inputs import sample_inputs, usual_sizes

Array = NDArray[Any]
Feeds = dict[str, Array]
Run = Callable[[Feeds], list[Array]]

ROWS, TOKENS = 3, 5
PADDED = 1  # the token that is tried as padding
SAME = 1e-6  # relative, in float64: rows and tokens that see each other differ in the leading digits


class _Undecided(Exception):
    """Raised when the module does not run on generated inputs, or its answers do not depend on them: names decide."""


def find_roles(module: nn.Module, interface: Interface) -> Roles:
    run = _runner(module, interface)
    named = replace(interface, roles=None)

    def tried(find: Callable[[Run, Interface], str | None], otherwise: str | None) -> str | None:
        try:
            return find(run, interface)
        except _Undecided:
            return otherwise

    return Roles(tried(_batch, named.batch), tried(_mask, named.mask))


def _batch(run: Run, interface: Interface) -> str | None:
    """The leading axis, if each row has the same answer alone as in a batch."""
    name = leading_axis(interface.inputs)
    outputs = [index for index, spec in enumerate(interface.outputs) if spec.shape[:1] == (name,)]
    if name is None or not outputs:
        return None
    known = replace(interface, roles=Roles(name))
    rows = known.fitting(name, ROWS)
    if known.least(name) > 1 or rows < 2:
        raise _Undecided
    feeds = sample_inputs(known, usual_sizes(known, rows, TOKENS))
    together = run(feeds)
    for row in range(rows):
        alone = run(
            {
                spec.name: feeds[spec.name][row : row + 1] if spec.shape[:1] == (name,) else feeds[spec.name]
                for spec in interface.inputs
            }
        )
        if not all(_same(alone[index], together[index][row : row + 1]) for index in outputs):
            return None
    return name


def _mask(run: Run, interface: Interface) -> str | None:
    """A boolean input whose False makes the other tokens' answers independent of that token."""
    candidates = mask_candidates(interface.inputs)
    return next((spec.name for spec in candidates if _hides(run, interface, spec)), None) if candidates else None


def _hides(run: Run, interface: Interface, mask: TensorSpec) -> bool:
    token = mask.shape[-1]
    masked = [
        spec
        for spec in interface.inputs
        if spec.dtype != "bool" and spec.shape[:1] == mask.shape[:1] and spec.shape[1:2] == (token,)
    ]
    plain = sample_inputs(interface, usual_sizes(interface, 2, TOKENS))
    if not masked or plain[mask.name].shape[-1] <= PADDED + 1:
        return False
    other = plain | {spec.name: _changed(plain[spec.name], interface.ids(spec.name)) for spec in masked}

    def matters(*, false: Any) -> bool:
        """True if the token changes the answers of the others; where no token is real, they may be NaN."""
        real = np.ones(plain[mask.name].shape, bool)
        real[..., false] = False
        answers = (run(feeds | {mask.name: real}) for feeds in (plain, other))
        pairs = zip(*(_other_tokens(interface.outputs, outputs, token) for outputs in answers), strict=True)
        return any(np.isfinite(a).all() and np.isfinite(b).all() and not _same(a, b) for a, b in pairs)

    if matters(false=slice(None)):
        return False  # False does not hide it: the mask is True for padding, or it is not a mask
    if not matters(false=[]):
        raise _Undecided
    return not matters(false=PADDED)


def _changed(array: Array, ids: tuple[int, int]) -> Array:
    """Another value for the token that is tried as padding."""
    found = array.copy()
    low, high = ids
    token = found[:, PADDED]
    found[:, PADDED] = 3.0 - token if found.dtype.kind == "f" else low + (token - low + 1) % (high - low + 1)
    return found


def _other_tokens(specs: Sequence[TensorSpec], outputs: Sequence[Array], token: int | str) -> list[Array]:
    """The answers without those of the token that is tried as padding."""
    return [
        np.delete(array, PADDED, 1) if spec.shape[1:2] == (token,) else array
        for spec, array in zip(specs, outputs, strict=True)
    ]


def _same(found: Array, expected: Array) -> bool:
    if not (np.isfinite(found).all() and np.isfinite(expected).all()):
        raise _Undecided
    return bool(np.abs(found - expected).max(initial=0) <= SAME * max(np.abs(expected).max(initial=0), 1e-30))


def _runner(module: nn.Module, interface: Interface) -> Run:
    names = [spec.name for spec in interface.inputs]

    def run(feeds: Feeds) -> list[Array]:
        tensors = [torch.from_numpy(np.ascontiguousarray(feeds[name])) for name in names]
        try:
            with torch.no_grad():
                found = precise(*(x.double() if x.is_floating_point() else x for x in tensors))
        except Exception as error:  # the user's module may refuse generated inputs, or float64, in any way
            raise _Undecided from error
        arrays = [found] if isinstance(found, Tensor) else list(found)
        return [x.numpy().astype(np.float64) for x in arrays]

    try:
        precise = copy.deepcopy(module).eval().double()
    except Exception:  # noqa: BLE001 - likewise
        precise = module
    return run
