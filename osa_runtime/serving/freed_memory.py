"""Memory that a large request took goes back to the system when it is freed."""

from __future__ import annotations

import contextlib
import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # glibc's parameters of mallopt
LARGE = 1 << 20  # bytes


def return_freed_memory() -> None:
    """glibc keeps what was freed for each thread, and ever larger blocks of it; other libraries are left alone."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((MMAP_THRESHOLD, LARGE), (TRIM_THRESHOLD, LARGE), (ARENA_MAX, 2)):
            mallopt(parameter, value)
