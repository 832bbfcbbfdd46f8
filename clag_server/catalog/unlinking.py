"""Links to memories that go are taken out of all others, with what those memories did to them.

A link's reason may quote the memory that it points to. When that memory is deleted, the reason goes from the
linking memory and from its history; the history keeps that there was a link, of which kind. What the memory
rewrote on others, and the confidence that it took from them, becomes what it was before.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from clag_server.catalog.retracting import orders, restored_confidence, take_back_words
from clag_server.catalog.rows import links_from_json, links_to_json, to_json
from clag_server.catalog.schema import ChangeKind, link_targets, memories, memory_history
from clag_server.catalog.traces import chunks, clean_history, without_reasons
from clag_server.catalog.transaction import WriteTx, compile_insert
from clag_server.types.change import HistoryCause

_INSERT_HISTORY: Final = compile_insert(memory_history)
_SAVED: Final = ("links", "confidence", "context", "evolved_tags", "annotated_by")
_UNLINK: Final = (
    f"UPDATE memories SET {', '.join(f'{name} = ?' for name in _SAVED)}, revision = ?, update_time_ns = ?"  # noqa: S608
    " WHERE ns = ? AND key = ?"
)


def remove_links_to(tx: WriteTx, ns: int, gone: dict[str, int], *, now_ns: int) -> None:
    """Take links to memories that go (id to key) out of all others, with history; their own links are forgotten."""
    sources: dict[int, int] = {}
    targets = link_targets.c
    for some in chunks(gone.values()):
        rows = tx.connection.execute(
            sa.select(targets.source, targets.target).where(targets.ns == ns, targets.target.in_(some))
        )
        sources.update((source, target) for source, target in rows)
    for some in chunks(sorted(sources.keys() - set(gone.values()))):
        _unlink(tx, ns, some, gone, sources, now_ns=now_ns)
    for some in chunks(gone.values()):
        for end in (targets.target, targets.source):
            tx.connection.execute(sa.delete(link_targets).where(targets.ns == ns, end.in_(some)))


def _unlink(
    tx: WriteTx, ns: int, keys: list[int], gone: dict[str, int], causes: dict[int, int], *, now_ns: int
) -> None:
    clean_history(tx, ns, keys, gone)
    words = take_back_words(tx, ns, keys, gone.values())
    when = orders(tx, ns, gone)
    m = memories.c
    rows = tx.connection.execute(
        sa.select(m.key, m.cluster, m.event_time_ns, *(m[name] for name in _SAVED))
        .where(m.ns == ns, m.key.in_(keys))
        .order_by(m.key)
    ).all()
    changed: dict[int, tuple[dict[str, Any], dict[str, Any], int | None]] = {}
    for row in rows:
        before = {name: getattr(row, name) for name in _SAVED}
        links = links_from_json(row.links)
        lost = [(link, when[link.memory_id]) for link in links if link.memory_id in gone]
        if not lost and row.key not in words:
            continue
        confidence = restored_confidence(row.confidence, (row.event_time_ns, row.key), lost)
        left = links_to_json([link for link in links if link.memory_id not in gone])
        old: dict[str, Any] = {"links": without_reasons(row.links, gone)} if lost else {}
        if confidence != row.confidence:
            old["confidence"] = row.confidence
        changed[row.key] = (
            before | {"links": left, "confidence": confidence} | words.get(row.key, {}),
            old,
            row.cluster,
        )
    kinds = ((key, ChangeKind.MEMORY_EVOLVED, cluster, None) for key, (_, _, cluster) in changed.items())
    revisions = tx.log_memories(ns, kinds, time_ns=now_ns)
    history, updates = [], []
    for key, (values, old, cluster) in changed.items():
        cause = HistoryCause.DELETION
        history.append((revisions[key], ns, key, causes[key], now_ns, to_json(old), cause, "", cluster))
        updates.append((*(values[name] for name in _SAVED), revisions[key], now_ns, ns, key))
    tx.executemany(_INSERT_HISTORY, history)
    tx.executemany(_UNLINK, updates)
