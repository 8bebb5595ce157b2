"""The bearer token: from a file or the environment, since a command line is visible to everyone on the machine."""

from __future__ import annotations

import os
from pathlib import Path

from osa_runtime.errors import InputError

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
