"""How Ray Serve is tuned for these models: Ray reads it from the environment of its processes, as it is imported."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULTS = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",  # requests go from HAProxy straight to the replicas
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",  # the replica's event loop never blocks: models run in a thread
    # An inference may be repeated, so HAProxy sends what a dying replica did not answer to another one.
    "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
    "RAY_SERVE_HAPROXY_RETRIES": "10",  # HAProxy may choose the dead one, which has nothing to do, a few more times
    "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": "65536",  # bytes; only requests that fit can be repeated
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",  # for a balancer in front of all, of which there is none
}
HAPROXY_FILES = {
    "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": "haproxy.cfg",
    "RAY_SERVE_HAPROXY_SOCKET_PATH": "admin.sock",
    "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": "",
    "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": "server-state",
    "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": "metrics.sock",
}


def tune(haproxy: Path) -> None:
    """What the user has set stays. HAProxy's files go to a folder of their own, since several may run here."""
    files = {name: str(haproxy / file) for name, file in HAPROXY_FILES.items()}
    for name, value in (DEFAULTS | files).items():
        os.environ.setdefault(name, value)
