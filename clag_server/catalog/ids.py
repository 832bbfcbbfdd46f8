"""Generated memory ids: UUIDs of version 7 (RFC 9562, section 5.7), so that they sort by the time they were made.

The twelve bits after the milliseconds are a counter: ids made by one process are strictly ascending, also when
the clock is set back (the last millisecond is then kept).
"""

from __future__ import annotations

import os
import threading
import time
import uuid

_COUNTER_BITS = 12
_RANDOM_BITS = 62


class IdMaker:
    """Makes ids; safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self) -> str:
        """Return the next id, 36 characters."""
        now = (time.time_ns() // 1_000_000) << _COUNTER_BITS
        with self._lock:
            # A full counter runs over into the milliseconds, which RFC 9562 section 6.2 allows.
            self._last = stamp = max(now, self._last + 1)
        milliseconds, counter = stamp >> _COUNTER_BITS, stamp & ((1 << _COUNTER_BITS) - 1)
        random = int.from_bytes(os.urandom(8)) & ((1 << _RANDOM_BITS) - 1)
        number = (milliseconds << 80) | (7 << 76) | (counter << 64) | (2 << 62) | random
        return str(uuid.UUID(int=number))
