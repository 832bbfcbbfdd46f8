"""Document frequencies of a large namespace, remembered: they change slowly, and counting reads every posting."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

import sqlalchemy as sa

from clag_server.catalog import lexical

EXACT_BELOW: Final = 2_000
"""Indexed memories up to which every frequency is counted."""

_TOKENS: Final = 50_000
_GROWTH: Final = 1.1
"""A frequency is counted again when the namespace grew or shrank by this factor since."""


class FrequencyCache:
    """Counts of memories by token, at most a tenth out of date. Threads share it."""

    def __init__(self, size: int = _TOKENS) -> None:
        self._size = size
        self._known: OrderedDict[tuple[int, str], tuple[int, int]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, connection: sa.Connection, ns: int, tokens: Sequence[str]) -> tuple[Mapping[str, int], int]:
        """Return how many memories hold each token (absent: 0), and how many are indexed.

        A count that is remembered is scaled to the number of memories that there are now.
        """
        indexed = lexical.indexed(connection, ns)
        if indexed <= EXACT_BELOW:
            return lexical.document_frequency(connection, ns, tokens)
        found: dict[str, int] = {}
        missing: list[str] = []
        with self._lock:
            for token in dict.fromkeys(tokens):
                count, then = self._known.get((ns, token), (0, 0))
                if then and then <= indexed * _GROWTH and indexed <= then * _GROWTH:
                    self._known.move_to_end((ns, token))
                    found[token] = round(count * indexed / then)
                else:
                    missing.append(token)
        counted, indexed = lexical.document_frequency(connection, ns, missing)
        with self._lock:
            for token in missing:
                self._known[(ns, token)] = (counted.get(token, 0), indexed)
            while len(self._known) > self._size:
                self._known.popitem(last=False)
        return {token: count for token, count in {**found, **counted}.items() if count}, indexed
