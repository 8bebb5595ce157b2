"""A certificate as it comes back from its file: what is not finite is None."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from osa_runtime.parity.certificate import Certificate


def finite(certificate: Certificate) -> Certificate:
    """One way to say that there is no number, so that a page looks the same before and after the file."""
    found: Certificate = _finite(certificate)
    return found


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_finite(item) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(
            value, **{f.name: _finite(getattr(value, f.name)) for f in dataclasses.fields(value)}
        )
    return value
