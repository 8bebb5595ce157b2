"""The description of the REST surface at ``/openapi.json`` (OpenAPI 3.1)."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def openapi() -> dict[str, Any]:
    return {"openapi": "3.1.0", "info": {"title": "osa serve", "version": "2"}, "paths": {}}
