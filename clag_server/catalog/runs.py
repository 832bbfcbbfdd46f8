"""Memories beside those that came right after them: a sample, to see whether the order of arrival says anything."""

from __future__ import annotations

import numpy as np
import sqlalchemy as sa

from clag_server.catalog.connections import driver_of
from clag_server.types.memory import Matrix

_RANGE = "SELECT min(key), max(key) FROM memories INDEXED BY memories_key WHERE ns = ?"
_RUN = (
    "SELECT key, session_id, session_position, embedding FROM memories INDEXED BY memories_key"
    " WHERE ns = ? AND key >= ? AND placement_id IS NOT NULL ORDER BY key LIMIT ?"
)


def successors(connection: sa.Connection, ns: int, *, runs: int, length: int) -> tuple[Matrix, Matrix]:
    """Return vectors of memories (n, dim), and of those that followed each of them in its session (n, dim).

    Sampled are `runs` runs of `length` placed memories in order of arrival, spread evenly over the namespace; pairs
    outside one run are not found, so that interleaved sessions give fewer.
    """
    driver = driver_of(connection)
    first, last = driver.execute(_RANGE, (ns,)).fetchone()
    found: dict[tuple[str, int], bytes] = {}
    if first is not None:
        for start in np.linspace(first, last, runs, endpoint=False, dtype=np.int64).tolist():
            rows = driver.execute(_RUN, (ns, start, length))
            found.update(((row[1], row[2]), row[3]) for row in rows)
    pairs = [(one, found[session, at + 1]) for (session, at), one in found.items() if (session, at + 1) in found]
    width = len(pairs[0][0]) // 4 if pairs else 0
    before, after = (
        np.frombuffer(b"".join(pair[side] for pair in pairs), dtype=np.float32).reshape(len(pairs), width)
        for side in (0, 1)
    )
    return before, after
