"""How Ray Serve is tuned for these models: Ray reads it from the environment of its processes, as it is imported."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

SERVER_TIMEOUT = "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S"
BODY_SECONDS = 30  # for a request to arrive whole
ERRORS = {
    408: f"The request did not arrive within {BODY_SECONDS} s; send it again.",
    502: "The replica ended before it answered, and the request could not be repeated; send it again.",
    503: "No replica can take the request now; send it again.",
    504: "The replica did not answer in time; send it again.",
}


def _further_lines(value: str, *lines: str) -> str:
    """Ray copies values into HAProxy's configuration as they are, and has no variable for what these lines say."""
    return "\n    ".join((value, *lines))


def _error(status: int, text: str) -> str:
    again = " hdr Retry-After 1" if status == 503 else ""
    return f"http-error status {status} content-type application/json string '{json.dumps({'error': text})}'{again}"


DEFAULTS = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",  # requests go from HAProxy straight to the replicas
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",  # the replica's event loop never blocks: models run in a thread
    # An inference may be repeated, so HAProxy sends what a dying replica did not answer to another one.
    "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
    "RAY_SERVE_HAPROXY_RETRIES": "10",  # HAProxy may choose the dead one, which has nothing to do, a few more times
    "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": "65536",  # bytes; only requests that fit can be repeated
    SERVER_TIMEOUT: "300",  # a machine that is gone without a word; Ray's own is for ever
    # It can repeat only what it had whole before it sent the first byte, and many clients send head and body apart.
    # Streams of gRPC never end by themselves, so they must not be waited for. The value stands in a line
    # `default-server ... inter VALUE check`, which goes on after ours.
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": _further_lines(
        "5s",
        f"http-request wait-for-body time {BODY_SECONDS}s unless {{ req.hdr(content-type) -m beg application/grpc }}",
        "default-server",
    ),
    # The last line of HAProxy's defaults, after those that turn every error into a plain 500.
    "RAY_SERVE_HAPROXY_BALANCE_ALGORITHM": _further_lines(
        "leastconn", *(_error(status, text) for status, text in ERRORS.items())
    ),
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",  # for a balancer in front of all, of which there is none
}
HAPROXY_FILES = {
    "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": "haproxy.cfg",
    "RAY_SERVE_HAPROXY_SOCKET_PATH": "admin.sock",
    "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": "",
    "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": "server-state",
    "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": "metrics.sock",
}


def tuning(timeout: float) -> dict[str, str]:
    """For replicas that answer within so many seconds; HAProxy must wait longer, since their own answer says more."""
    return DEFAULTS | {SERVER_TIMEOUT: str(max(int(DEFAULTS[SERVER_TIMEOUT]), math.ceil(timeout) + 30))}


def tune(haproxy: Path, timeout: float = 0.0) -> None:
    """What the user has set stays. HAProxy's files go to a folder of their own, since several may run here."""
    files = {name: str(haproxy / file) for name, file in HAPROXY_FILES.items()}
    for name, value in (tuning(timeout) | files).items():
        os.environ.setdefault(name, value)
