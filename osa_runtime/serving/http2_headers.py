"""Header blocks of one connection. Clients of gRPC send the same few bytes with each call, so they are remembered."""

from __future__ import annotations

from hpack import Decoder, HPACKError

from osa_runtime.serving.http2_frames import COMPRESSION_ERROR, ConnectionFault

Headers = dict[str, str]

LARGEST_BLOCK = 32 << 10
REMEMBERED = 64


class HeaderBlocks:
    def __init__(self) -> None:
        self._decoder = Decoder(LARGEST_BLOCK)
        self._known: dict[bytes, Headers] = {}

    def read(self, block: bytes) -> Headers:
        """The fields of a block, which nobody may change."""
        found = self._known.get(block)
        if found is not None:
            return found
        before = self._table()
        try:
            pairs = self._decoder.decode(block, raw=True)
        except (HPACKError, ValueError, TypeError) as error:
            raise ConnectionFault(COMPRESSION_ERROR, str(error)) from error
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
        if self._table() != before or len(self._known) >= REMEMBERED:
            self._known.clear()  # the same bytes may mean something else from here on
        else:
            self._known[block] = headers
        return headers

    def _table(self) -> tuple[int, int]:
        """What differs whenever the decoder's table does: blocks add to its front only, or shorten it."""
        entries = self._decoder.header_table.dynamic_entries
        return len(entries), id(entries[0]) if entries else 0
