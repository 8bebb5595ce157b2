"""A network with nothing but loopback, for servers that also open ports on every interface."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

CLONE_NEWNET = 0x40000000


class NoNamespace(Exception):
    """The system does not let this process make a network namespace."""


@contextmanager
def loopback_network() -> Iterator[None]:
    """This thread, and the threads and processes that it starts, are in the new network until the end."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(CLONE_NEWNET) != 0:
            raise NoNamespace(os.strerror(ctypes.get_errno()))
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            assert libc.setns(home, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    finally:
        os.close(home)
