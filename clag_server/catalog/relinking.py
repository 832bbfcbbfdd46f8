"""Links that an update of a memory makes false, taken away at both ends; evolution makes links anew.

What the server linked rests on the old words and the old place. A REFINES link stays as long as one of the two
names the other in `supersedes`. With a link goes what it did: a contradiction's share of the older memory's
confidence, its place as the one that holds, and what was rewritten on others (see `retracting`). History keeps that
there was a link, of which kind, without its reason, as after a delete: a reason may quote the memory at the other
end, which nobody could find there any more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from clag_server.catalog.retracting import Order, orders, restored_confidence, take_back_words
from clag_server.catalog.rows import links_from_json, links_to_json, strings_from_json, to_json
from clag_server.catalog.schema import ChangeKind, link_targets, memories, memory_history
from clag_server.catalog.traces import chunks, clean_history, without_reasons
from clag_server.catalog.transaction import WriteTx, compile_insert
from clag_server.types.change import HistoryCause
from clag_server.types.memory import Link, LinkKind

_INSERT_HISTORY: Final = compile_insert(memory_history)
_SAVED: Final = ("links", "confidence", "superseded_by", "context", "evolved_tags", "annotated_by")
_SAVE: Final = (
    f"UPDATE memories SET {', '.join(f'{name} = ?' for name in _SAVED)}, revision = ?, update_time_ns = ?"  # noqa: S608
    " WHERE ns = ? AND key = ?"
)
_SUPERSEDING: Final = frozenset({LinkKind.REFINES, LinkKind.CONTRADICTS})
"""Kinds of links that go with one memory taking the place of another."""

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
    """What becomes of a memory whose own links go: columns with new values, and the old ones for history."""

    values: dict[str, Any]
    old: dict[str, Any]


def drop_own_links(tx: WriteTx, ns: int, memory: Rewritten) -> OwnLinks | None:
    """Forget the targets of the memory's own false links; None when all are true. The row is the caller's."""
    links = links_from_json(memory.links)
    superseding = _superseding(tx, ns, memory, [link.memory_id for link in links if link.kind in _SUPERSEDING])
    kept = [link for link in links if _holds(memory, link, memory.supersedes, link.memory_id in superseding)]
    if len(kept) == len(links):
        return None
    lost = [link for link in links if link not in kept]
    gone = {link.memory_id for link in lost}
    targets = _keys(tx, ns, gone - {link.memory_id for link in kept})
    tx.executemany(_FORGET_TARGET, [(ns, target, memory.key) for target in targets])
    clean_history(tx, ns, [memory.key], gone)
    m = memories.c
    row = tx.connection.execute(
        sa.select(m.confidence, m.superseded_by, m.event_time_ns).where(m.ns == ns, m.key == memory.key)
    ).one()
    own = (row.event_time_ns, memory.key)
    given_back = _given_back(row.confidence, row.superseded_by, own, lost, orders(tx, ns, gone), superseding)
    before = {"confidence": row.confidence, "superseded_by": row.superseded_by}
    old = {name: before[name] for name in given_back}
    return OwnLinks(
        given_back | {"links": links_to_json(kept)}, old | {"links": without_reasons(memory.links, gone)}
    )


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
    words = take_back_words(tx, ns, keys, [memory.key]) if memory.replaced else {}
    when = orders(tx, ns, [memory.memory_id])
    rows = tx.connection.execute(
        sa.select(m.key, m.memory_id, m.supersedes, m.cluster, m.event_time_ns, *(m[name] for name in _SAVED))
        .where(m.ns == ns, m.key.in_(keys))
        .order_by(m.key)
    ).all()
    changed: dict[int, tuple[sa.Row[*tuple[Any, ...]], list[Link], dict[str, Any], dict[str, Any]]] = {}
    for row in rows:
        links = links_from_json(row.links)
        newer, older = strings_from_json(row.supersedes), row.memory_id in memory.supersedes
        kept = [one for one in links if one.memory_id != memory.memory_id or _holds(memory, one, newer, older)]
        if len(kept) == len(links):
            continue
        lost = [link for link in links if link not in kept]
        own, claimed = (row.event_time_ns, row.key), {memory.memory_id} if older else set()
        given_back = _given_back(row.confidence, row.superseded_by, own, lost, when, claimed)
        old = {name: getattr(row, name) for name in given_back}
        old["links"] = without_reasons(row.links, {memory.memory_id})
        values = {name: getattr(row, name) for name in _SAVED} | words.get(row.key, {}) | given_back
        changed[row.key] = (row, kept, values | {"links": links_to_json(kept)}, old)
    unlinked = [key for key, (_, kept, _, _) in changed.items() if memory.memory_id not in _ids(kept)]
    tx.executemany(_FORGET_TARGET, [(ns, memory.key, key) for key in unlinked])
    clean_history(tx, ns, list(changed), {memory.memory_id})
    kinds = ((key, ChangeKind.MEMORY_EVOLVED, row.cluster, None) for key, (row, _, _, _) in changed.items())
    revisions = tx.log_memories(ns, kinds, time_ns=now_ns)
    history, updates = [], []
    for key, (row, _, values, old) in changed.items():
        cause = HistoryCause.EVOLUTION
        history.append((revisions[key], ns, key, memory.key, now_ns, to_json(old), cause, "", row.cluster))
        updates.append((*(values[name] for name in _SAVED), revisions[key], now_ns, ns, key))
    tx.executemany(_INSERT_HISTORY, history)
    tx.executemany(_SAVE, updates)


def _given_back(
    confidence: float,
    superseded_by: str,
    own: Order,
    lost: Sequence[Link],
    when: Mapping[str, Order],
    claimed: Collection[str],
) -> dict[str, Any]:
    """Return the columns of a memory that lost links become again: its confidence, and that nothing replaces it.

    Args:
        confidence: Its confidence now.
        superseded_by: What replaces it now, "" for nothing.
        own: Its own place in the order of events.
        lost: The links that go.
        when: The places of the memories at their other ends, of those that are there.
        claimed: Ids of memories of which a client says that they replace it.
    """
    values: dict[str, Any] = {}
    there = [(link, when[link.memory_id]) for link in lost if link.memory_id in when]
    if (restored := restored_confidence(confidence, own, there)) != confidence:
        values["confidence"] = restored
    contradicting = {link.memory_id for link in lost if link.kind is LinkKind.CONTRADICTS}
    if superseded_by in contradicting and superseded_by not in claimed:
        values["superseded_by"] = ""
    return values


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
    return not changed.replaced


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
