"""Reasons to refuse a request, each with its status in REST and gRPC. The codes are Triton's.

Refusal (OsaError)              500  INTERNAL
├── BadRequest (InputError)     400  INVALID_ARGUMENT
│   ├── TooLarge                413  RESOURCE_EXHAUSTED
│   │   └── HeadTooLarge        431  RESOURCE_EXHAUSTED
│   ├── TooSlow                 408  DEADLINE_EXCEEDED
│   └── NonFiniteError          422  INVALID_ARGUMENT, in execution.py
├── Unauthenticated             401  UNAUTHENTICATED
├── Forbidden                   403  PERMISSION_DENIED
├── NotFound                    404  NOT_FOUND
├── Cancelled                   499  CANCELLED
├── Unsupported                 501  UNIMPLEMENTED
└── Unavailable                 503  UNAVAILABLE
"""

from __future__ import annotations

from osa_runtime.errors import InputError, OsaError

LONGEST_NAME = 200  # characters; a longer name from a client is cut before it is compared or repeated


class Refusal(OsaError):
    """A request that is not answered; the message says why."""

    status = 500
    code = "INTERNAL"
    retry_after: int | None = None  # seconds


class BadRequest(Refusal, InputError):
    """The request is malformed, or does not fit the model."""

    status = 400
    code = "INVALID_ARGUMENT"


class TooLarge(BadRequest):
    """The request is larger than the server's limits."""

    status = 413
    code = "RESOURCE_EXHAUSTED"


class HeadTooLarge(TooLarge):
    """The headers of the request are too many or too long."""

    status = 431


class TooSlow(BadRequest):
    """The client did not send its request, or did not read its answer, in time."""

    status = 408
    code = "DEADLINE_EXCEEDED"


class Unauthenticated(Refusal):
    """The bearer token is missing or wrong."""

    status = 401
    code = "UNAUTHENTICATED"


class Forbidden(Refusal):
    """The request comes from a page of another origin, or under a name that is not this server's."""

    status = 403
    code = "PERMISSION_DENIED"


class NotFound(Refusal):
    """There is no such model, version or path."""

    status = 404
    code = "NOT_FOUND"


class Cancelled(Refusal):
    """The client left before its answer was ready."""

    status = 499
    code = "CANCELLED"


class Unsupported(Refusal):
    """A part of the protocol that this server does not have."""

    status = 501
    code = "UNIMPLEMENTED"


class Unavailable(Refusal):
    """The queue is full, the request waited too long, or the server is stopping."""

    status = 503
    code = "UNAVAILABLE"
    retry_after = 1


def shown(value: object) -> str:
    """The beginning of what was received, for a message."""
    try:
        text = repr(value[:80] if isinstance(value, (str, bytes, list)) else value)
    except ValueError:  # a whole number of thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def as_refusal(error: BaseException) -> Refusal:
    """Any error as what the client is told."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, InputError):
        return BadRequest(str(error))
    if isinstance(error, OsaError):
        return Refusal(str(error))
    return Refusal(f"The server failed ({type(error).__name__}); its log has the details.")
