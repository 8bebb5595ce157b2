"""Who may ask: the bearer token, and pages of other origins kept out."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

from osa_runtime.serving.refusals import Forbidden, Unauthenticated

# Probes of orchestrators carry no token, and the page asks for it; neither tells anything about the models.
OPEN_PATHS = frozenset({"/v2/health/live", "/v2/health/ready", "/"})


class Guard:
    def __init__(self, token: str | None) -> None:
        self._expected = f"Bearer {token}".encode() if token else None

    def check(self, headers: Mapping[bytes, bytes], path: str = "") -> None:
        origin = headers.get(b"origin")
        if origin is not None:
            self._check_origin(origin, headers.get(b"host", b""))
        if self._expected is not None and path not in OPEN_PATHS:
            self.check_token(headers.get(b"authorization", b""))

    def check_token(self, given: bytes) -> None:
        if self._expected is not None and not hmac.compare_digest(given, self._expected):
            raise Unauthenticated("The bearer token is missing or wrong; send the header Authorization: Bearer TOKEN.")

    def _check_origin(self, origin: bytes, host: bytes) -> None:
        """A page from elsewhere may make a browser send requests to this machine; it shall not load or unload."""
        try:
            where = urlsplit(origin.decode("latin-1")).netloc
        except ValueError:  # a bracket that does not close
            where = ""
        if where.lower() != host.decode("latin-1").lower():
            raise Forbidden("The request comes from a page of another origin; call the server from its own page.")
