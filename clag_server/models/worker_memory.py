"""How much memory this process has, with the standard library alone."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

__all__ = ["resident_bytes"]

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes.

    Where the system does not say what it is now (macOS), the largest that it ever was.
    """
    try:
        pages = int(_STATM.read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024  # bytes there, KiB elsewhere
    return pages * os.sysconf("SC_PAGE_SIZE")
