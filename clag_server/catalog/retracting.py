"""What a memory did to others by evolution is taken back when it goes or its words change.

A newer memory may have lowered an older one's confidence, taken its place, and rewritten its context and tags in
the light of its own words. None of that may outlive it (case D1), and the older values are in the history.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any, Final

import sqlalchemy as sa

from clag_server.catalog.rows import to_json
from clag_server.catalog.schema import memories, memory_history
from clag_server.catalog.traces import REWRITE_HISTORY, chunks
from clag_server.catalog.transaction import WriteTx
from clag_server.types.memory import CONTRADICTED, Link, LinkKind

_REWRITTEN: Final = ("context", "evolved_tags", "annotated_by")
"""What one memory rewrites on another."""

Order = tuple[int, int]
"""(event time, key): what is greater is newer."""


def restored_confidence(confidence: float, order: Order, gone: Iterable[tuple[Link, Order]]) -> float:
    """Return a memory's confidence without the links that go, each with the order of the memory it points to."""
    newer = sum(link.kind is LinkKind.CONTRADICTS and other > order for link, other in gone)
    return min(1.0, confidence / CONTRADICTED**newer) if newer else confidence


def orders(tx: WriteTx, ns: int, ids: Iterable[str]) -> dict[str, Order]:
    """Return when memories happened, by id."""
    m = memories.c
    found: dict[str, Order] = {}
    for some in chunks(sorted(ids)):
        rows = tx.connection.execute(
            sa.select(m.memory_id, m.event_time_ns, m.key).where(m.ns == ns, m.memory_id.in_(some))
        )
        found.update((memory_id, (time_ns, key)) for memory_id, time_ns, key in rows)
    return found


def take_back_words(
    tx: WriteTx, ns: int, keys: Collection[int], causes: Collection[int]
) -> dict[int, dict[str, Any]]:
    """Take what memories rewrote on others out of their histories; return what they have to become again.

    Args:
        tx: The transaction.
        ns: The namespace.
        keys: The others (all that are linked to them).
        causes: The memories whose words must go.

    Returns:
        By key, the columns that hold such words now, with the values from before them.
    """
    h = memory_history.c
    touched: set[int] = set()
    for some in chunks(sorted(causes)):
        for few in chunks(sorted(keys)):
            found = sa.select(h.key, h.old).where(h.ns == ns, h.key.in_(few), h.cause.in_(some), h.key != h.cause)
            touched.update(
                key for key, old in tx.connection.execute(found) if json.loads(old).keys() & set(_REWRITTEN)
            )
    return {key: values for key in sorted(touched) if (values := _walk(tx, ns, key, frozenset(causes)))}


def _walk(tx: WriteTx, ns: int, key: int, causes: frozenset[int]) -> dict[str, Any]:
    """Go through one history from its beginning and carry the values from before over what the causes wrote.

    Their entries no longer say that they wrote it: the next entry, or the memory itself, has the value from before.
    """
    h = memory_history.c
    rows = tx.connection.execute(
        sa.select(h.revision, h.cause, h.old).where(h.ns == ns, h.key == key).order_by(h.revision)
    ).all()
    carried: dict[str, Any] = {}
    rewritten = []
    for revision, cause, text in rows:
        old = json.loads(text)
        for name in old.keys() & set(_REWRITTEN):
            old[name] = carried.pop(name, old[name])
            if cause in causes and cause != key:
                carried[name] = old.pop(name)
        if (fresh := to_json(old)) != text:
            rewritten.append((fresh, revision))
    tx.executemany(REWRITE_HISTORY, rewritten)
    return carried
