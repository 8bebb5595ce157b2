"""Header blocks of one connection. Clients of gRPC send the same few bytes with each call, so they are remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from hpack import Decoder, HPACKError

from osa_runtime.serving.http2_frames import COMPRESSION_ERROR, ConnectionFault

Headers = dict[str, str]
Meaning = TypeVar("Meaning")

LARGEST_BLOCK = 32 << 10
REMEMBERED = 64


class HeaderBlocks(Generic[Meaning]):
    """``understand`` is asked what headers mean, once for blocks that repeat."""

    def __init__(self, understand: Callable[[Headers], Meaning]) -> None:
        self._understand = understand
        self._decoder = Decoder(LARGEST_BLOCK)
        self._known: dict[bytes, Meaning] = {}

    def known(self, block: bytes) -> Meaning | None:
        """What a block means that came before and still means the same."""
        return self._known.get(block)

    def read(self, block: bytes) -> Meaning:
        found = self._known.get(block)
        if found is not None:
            return found
        before = self._table()
        try:
            pairs = self._decoder.decode(block, raw=True)
        except (HPACKError, ValueError, TypeError) as error:
            raise ConnectionFault(COMPRESSION_ERROR, str(error)) from error
        meaning = self._understand({name.decode("latin-1"): value.decode("latin-1") for name, value in pairs})
        if self._table() != before or len(self._known) >= REMEMBERED:
            self._known.clear()  # the same bytes may mean something else from here on
        else:
            self._known[block] = meaning
        return meaning

    def _table(self) -> tuple[int, int]:
        """What differs whenever the decoder's table does: blocks add to its front only, or shorten it."""
        entries = self._decoder.header_table.dynamic_entries
        return len(entries), id(entries[0]) if entries else 0
