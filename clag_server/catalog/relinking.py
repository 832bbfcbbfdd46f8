"""Links that an update of a memory makes false, taken away at both ends; evolution makes links anew.

What the server linked for likeness, order in the session or equal words rests on the old words and the old place.
A REFINES link stays as long as one of the two names the other in `supersedes`. Kinds that evolution does not make
by itself (they come with an import) stay. History keeps that there was a link, of which kind, without its reason,
as after a delete: a reason may quote the memory at the other end, which nobody could find there any more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from clag_server.catalog.rows import links_from_json, links_to_json, strings_from_json, to_json
from clag_server.catalog.schema import ChangeKind, link_targets, memories, memory_history
from clag_server.catalog.traces import chunks, clean_history, without_reasons
from clag_server.catalog.transaction import WriteTx, compile_insert
from clag_server.types.change import HistoryCause
from clag_server.types.memory import Link, LinkKind

_DERIVED: Final = frozenset({LinkKind.SIMILAR, LinkKind.TEMPORAL, LinkKind.DUPLICATE})
"""Kinds that rest on words and places alone."""

_INSERT_HISTORY: Final = compile_insert(memory_history)
_SAVE_LINKS: Final = "UPDATE memories SET links = ?, revision = ?, update_time_ns = ? WHERE ns = ? AND key = ?"
_FORGET_TARGET: Final = "DELETE FROM link_targets WHERE ns = ? AND target = ? AND source = ?"


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A memory that changed: its links (JSON), what it supersedes now, whether its words or its place changed."""

    key: int
    memory_id: str
    links: str
    supersedes: tuple[str, ...]
    replaced: bool


@dataclass(frozen=True, slots=True)
class OwnLinks:
    """A memory's own links: JSON of those that stay, and of those there were, as history keeps them."""

    kept: str
    old: str


def drop_own_links(tx: WriteTx, ns: int, memory: Rewritten) -> OwnLinks | None:
    """Forget the targets of the memory's own false links; None when all are true. The row is the caller's."""
    links = links_from_json(memory.links)
    superseding = _superseding(tx, ns, memory, [link.memory_id for link in links if link.kind is LinkKind.REFINES])
    kept = [link for link in links if _holds(memory, link, memory.supersedes, link.memory_id in superseding)]
    if len(kept) == len(links):
        return None
    gone = {link.memory_id for link in links if link not in kept}
    targets = _keys(tx, ns, gone - {link.memory_id for link in kept})
    tx.executemany(_FORGET_TARGET, [(ns, target, memory.key) for target in targets])
    clean_history(tx, ns, [memory.key], gone)
    return OwnLinks(links_to_json(kept), without_reasons(memory.links, gone))


def drop_links_to(tx: WriteTx, ns: int, memory: Rewritten, *, now_ns: int) -> None:
    """Take false links to the memory out of all others, with history: evolution of theirs that it caused."""
    t = link_targets.c
    sources = tx.connection.scalars(
        sa.select(t.source).where(t.ns == ns, t.target == memory.key).order_by(t.source)
    ).all()
    for some in chunks(sources):
        _drop(tx, ns, some, memory, now_ns=now_ns)


def _drop(tx: WriteTx, ns: int, keys: Sequence[int], memory: Rewritten, *, now_ns: int) -> None:
    m = memories.c
    rows = tx.connection.execute(
        sa.select(m.key, m.memory_id, m.links, m.supersedes, m.cluster)
        .where(m.ns == ns, m.key.in_(keys))
        .order_by(m.key)
    ).all()
    changed: dict[int, tuple[sa.Row[*tuple[Any, ...]], list[Link]]] = {}
    for row in rows:
        links = links_from_json(row.links)
        newer, older = strings_from_json(row.supersedes), row.memory_id in memory.supersedes
        kept = [one for one in links if one.memory_id != memory.memory_id or _holds(memory, one, newer, older)]
        if len(kept) < len(links):
            changed[row.key] = (row, kept)
    unlinked = [key for key, (_, kept) in changed.items() if memory.memory_id not in _ids(kept)]
    tx.executemany(_FORGET_TARGET, [(ns, memory.key, key) for key in unlinked])
    clean_history(tx, ns, list(changed), {memory.memory_id})
    kinds = ((key, ChangeKind.MEMORY_EVOLVED, row.cluster, None) for key, (row, _) in changed.items())
    revisions = tx.log_memories(ns, kinds, time_ns=now_ns)
    history, updates = [], []
    for key, (row, kept) in changed.items():
        old = to_json({"links": without_reasons(row.links, {memory.memory_id})})
        cause = HistoryCause.EVOLUTION
        history.append((revisions[key], ns, key, memory.key, now_ns, old, cause, "", row.cluster))
        updates.append((links_to_json(kept), revisions[key], now_ns, ns, key))
    tx.executemany(_INSERT_HISTORY, history)
    tx.executemany(_SAVE_LINKS, updates)


def _holds(changed: Rewritten, link: Link, supersedes: Collection[str], superseded: bool) -> bool:
    """Whether a link stays.

    Args:
        changed: One of its ends.
        link: The link.
        supersedes: What the linking memory supersedes.
        superseded: Whether the other end supersedes the linking memory.
    """
    if link.kind is LinkKind.REFINES:
        return superseded or link.memory_id in supersedes
    return not changed.replaced or link.kind not in _DERIVED


def _superseding(tx: WriteTx, ns: int, memory: Rewritten, ids: Collection[str]) -> set[str]:
    """Return which of the memories name this one in `supersedes`."""
    m = memories.c
    rows = tx.connection.execute(
        sa.select(m.memory_id, m.supersedes).where(m.ns == ns, m.memory_id.in_(sorted(ids)))
    )
    return {row.memory_id for row in rows if memory.memory_id in strings_from_json(row.supersedes)}


def _keys(tx: WriteTx, ns: int, ids: Collection[str]) -> list[int]:
    m = memories.c
    return list(tx.connection.scalars(sa.select(m.key).where(m.ns == ns, m.memory_id.in_(sorted(ids)))))


def _ids(links: Sequence[Link]) -> set[str]:
    return {link.memory_id for link in links}
