"""Access: the bearer token, the names of this machine, and pages of other origins.

The token comes from a file or the environment, since a command line is visible to everyone on the machine.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from osa_runtime.errors import InputError
from osa_runtime.serving.refusals import Forbidden, Unauthenticated
from osa_runtime.serving.settings import is_loopback

HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^][:@/?#\\]+))(?::[0-9]{1,5})?")
VARIABLE = "OSA_SERVE_TOKEN"


def read_token(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get(VARIABLE) or None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The token file {path} cannot be read: {error}") from error
    if not token.isascii() or not token.isprintable() or " " in token or not token:
        raise InputError(f"The token file {path} must hold one token of printable ASCII characters without spaces.")
    return token


# Open to all: probes of orchestrators carry no token, and the page asks for it. Neither shows anything of the models.
PROBES = frozenset({"/v2/health/live", "/v2/health/ready"})
OPEN_PATHS = PROBES | {"/"}


class Guard:
    """``loopback``: without a token, only requests under a name of this machine are answered."""

    def __init__(self, token: str | None, *, loopback: bool = False) -> None:
        self._expected = f"Bearer {token}".encode() if token else None
        self._own_names_only = loopback and not token
        self._known: set[bytes] = set()  # valid values of Host

    def check(self, headers: Mapping[bytes, bytes], path: str = "") -> None:
        host = headers.get(b"host", b"")
        if self._own_names_only and host not in self._known:
            self._check_host(host)
        origin = headers.get(b"origin")
        if origin is not None:
            self._check_origin(origin, host)
        if self._expected is not None and path not in OPEN_PATHS:
            self.check_token(headers.get(b"authorization", b""))

    def check_token(self, given: bytes) -> None:
        if self._expected is not None and not hmac.compare_digest(given, self._expected):
            raise Unauthenticated("The bearer token is missing or wrong; send the header Authorization: Bearer TOKEN.")

    def _check_host(self, host: bytes) -> None:
        """Refuse foreign names that resolve to this machine (DNS rebinding): their pages would look like ours."""
        if not is_loopback(_name(host)):
            raise Forbidden(
                f"The host is {host[:80].decode('latin-1')!r}; without a token this server answers to localhost, "
                "127.0.0.1 and [::1] only. Use one of them, or start it with a token."
            )
        if len(self._known) < 64:
            self._known.add(host)

    def _check_origin(self, origin: bytes, host: bytes) -> None:
        """Refuse pages of other origins, which could make a browser load or unload models here."""
        try:
            where = urlsplit(origin.decode("latin-1")).netloc
        except ValueError:  # a bracket that does not close
            where = ""
        if where.lower() != host.decode("latin-1").lower():
            raise Forbidden("The request comes from a page of another origin; call the server from its own page.")


def _name(host: bytes) -> str:
    """The host without its port and the brackets of an address; empty if it is not valid."""
    match = HOST.fullmatch(host.decode("latin-1"))
    return match[1] or match[2] if match else ""
