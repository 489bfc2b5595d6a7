"""Cores, memory and load of this machine; None, or the best estimate, where the system does not report them."""

from __future__ import annotations

import os
import sys

__all__ = ["free_memory", "load_average", "peak_memory", "total_memory", "usable_cores"]


def usable_cores() -> int:
    """Return how many cores this process may use: its affinity, or all cores where a system has none.

    >>> usable_cores() >= 1
    True
    """
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows
        return os.cpu_count() or 1


def peak_memory() -> float | None:
    """Return the peak memory of this process in MB; None where the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024  # macOS counts bytes, Linux kilobytes


def free_memory() -> float | None:
    """Return the free memory in GB, or None where the system does not report it."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    except (AttributeError, ValueError, OSError):
        return None


def total_memory() -> int | None:
    """Return the machine's total memory in bytes, or None where the system does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def load_average() -> float | None:
    """Return the load average of the last minute, or None where the system does not report it."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
