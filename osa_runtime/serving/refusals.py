"""Reasons to refuse a request, each with its status in REST and its code in gRPC. The codes are Triton's.

``NonFiniteError`` is in execution.py.
"""

from __future__ import annotations

from osa_runtime.errors import InputError, OsaError

LONGEST_NAME = 200  # characters; a longer name from a client is cut before it is compared or repeated


class Refusal(OsaError):
    """A request that is not answered; the message says why."""

    status = 500
    code = "INTERNAL"
    retry_after: int | None = None  # seconds

    def __init_subclass__(cls, status: int, code: str | None = None, retry_after: int | None = None) -> None:
        cls.status, cls.code, cls.retry_after = status, code or cls.code, retry_after


class BadRequest(Refusal, InputError, status=400, code="INVALID_ARGUMENT"):
    """The request is malformed, or does not fit the model."""


class TooLarge(BadRequest, status=413, code="RESOURCE_EXHAUSTED"):
    """The request is larger than the server's limits."""


class HeadTooLarge(TooLarge, status=431):
    """The headers of the request are too many or too long."""


class TooSlow(BadRequest, status=408, code="DEADLINE_EXCEEDED"):
    """The client did not send its request, or did not read its answer, in time."""


class Unauthenticated(Refusal, status=401, code="UNAUTHENTICATED"):
    """The bearer token is missing or wrong."""


class Forbidden(Refusal, status=403, code="PERMISSION_DENIED"):
    """The request comes from a page of another origin, or under a name that is not this server's."""


class NotFound(Refusal, status=404, code="NOT_FOUND"):
    """There is no such model, version or path."""


class Cancelled(Refusal, status=499, code="CANCELLED"):
    """The client left before its answer was ready."""


class Unsupported(Refusal, status=501, code="UNIMPLEMENTED"):
    """A part of the protocol that this server does not have."""


class Unavailable(Refusal, status=503, code="UNAVAILABLE", retry_after=1):
    """The queue is full, the request waited too long, or the server is stopping."""


def shown(value: object) -> str:
    """The beginning of what was received, for a message."""
    try:
        text = repr(value[:80] if isinstance(value, (str, bytes, list)) else value)
    except ValueError:  # a whole number of thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def as_refusal(error: BaseException) -> Refusal:
    """The refusal that the client receives for an error."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, InputError):
        return BadRequest(str(error))
    if isinstance(error, OsaError):
        return Refusal(str(error))
    return Refusal(f"The server failed ({type(error).__name__}); its log has the details.")
