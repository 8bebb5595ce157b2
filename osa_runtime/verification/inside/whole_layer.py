"""A layer of orthogonal attention that may not compute its heads: they are seen by running it with other weights."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from osa_runtime.verification.inside.model_parts import Array, Core


class WholeLayer(ABC):
    @abstractmethod
    def run(
        self, x: Array, weight: Array, out: Array, scale: Array, mask: Array | None
    ) -> tuple[Array, int | None, Array]:
        """The output for these weights, the squarings if it counts them, and [Q K V] as the layer would round them.

        The weights stand on the right of x: (D, 3·h·d), the columns head by head as [Q K V], and (h·d, D).
        """

    def core(self, x: Array, weight: Array, scale: Array, mask: Array | None) -> Core:
        """The core of the layer on its input, by head: W_O is replaced by the identity.

        Queries, keys and values are in float64, since the folded layer rounds none of them; and as it rounds them where
        it does not fold.
        """
        heads = scale.size
        q, k, v = np.split(by_head(x.astype(np.float64) @ weight.astype(np.float64), heads), 3, -1)
        out, squarings, packed = self.run(x, weight, np.eye(weight.shape[1] // 3), scale, mask)
        rounded = tuple(np.split(by_head(packed, heads), 3, -1))
        tokens = None if mask is None else mask[:, None]
        return Core(q, k, v, scale, tokens, by_head(out, heads), squarings, rounded)

    def applied(self, core: Core, v: Array) -> Array:
        """exp(S)·v: with [Q K V] as the tokens and the identity as the weight."""
        packed = np.concatenate([core.q, core.k, v], -1)
        heads, width = packed.shape[1], packed.shape[3]
        x = packed.transpose(0, 2, 1, 3).reshape(packed.shape[0], packed.shape[2], heads * width)
        mask = None if core.mask is None else np.ascontiguousarray(core.mask[:, 0])
        out, *_ = self.run(x, np.eye(heads * width), np.eye(heads * v.shape[-1]), core.scale, mask)
        return by_head(out, heads)


def by_head(x: Array, heads: int) -> Array:
    """(b, N, h·d) → (b, h, N, d)."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)
