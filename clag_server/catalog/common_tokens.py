"""Tokens that a search in a large namespace cannot afford, remembered: counting them reads many postings."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

_COMMON_S: Final = 600.0
"""How long a token is taken for common, in seconds, until it is counted again."""


class CommonTokens:
    """Tokens that were found in more memories than a search may score, so that they are not counted each time.

    Only these are remembered, and not for long: a token taken for common too long leaves a word out of a search,
    one taken for rare too long would make searches slow. Threads share it.
    """

    def __init__(self, size: int = 10_000, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = size
        self._clock = clock
        self._until: OrderedDict[tuple[int, str], float] = OrderedDict()
        self._lock = threading.Lock()

    def holds(self, ns: int, token: str) -> bool:
        """Return whether the token was found common lately."""
        with self._lock:
            return self._until.get((ns, token), -math.inf) > self._clock()

    def add(self, ns: int, token: str) -> None:
        """Remember a token as common."""
        with self._lock:
            self._until[(ns, token)] = self._clock() + _COMMON_S
            self._until.move_to_end((ns, token))
            while len(self._until) > self._size:
                self._until.popitem(last=False)
