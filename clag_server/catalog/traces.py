"""What other rows know of a memory that goes: reasons of links in histories, supersession, representatives."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final, TypeVar

import sqlalchemy as sa

from clag_server.catalog.rows import links_from_json, links_to_json, to_json
from clag_server.catalog.schema import ChangeKind, clusters, memories, memory_history
from clag_server.catalog.transaction import ChangeRow, WriteTx, compile_insert
from clag_server.types.change import HistoryCause

T = TypeVar("T")

CHUNK: Final = 500
"""Values of one IN list of a write."""

INSERT_LINK: Final = "INSERT OR IGNORE INTO link_targets (ns, target, source) VALUES (?, ?, ?)"
_INSERT_HISTORY: Final = compile_insert(memory_history)
_RELEASE: Final = (
    "UPDATE memories SET superseded_by = '', revision = ?, update_time_ns = ? WHERE ns = ? AND key = ?"
)
REWRITE_HISTORY: Final = "UPDATE memory_history SET old = ? WHERE revision = ?"
_REPRESENT: Final = (
    "UPDATE clusters SET representatives = ?, profile_stale = 1, revision = ?, update_time_ns = ?"
    " WHERE ns = ? AND cluster = ?"
)
_SUPERSEDED_SQL: Final = "superseded_by <> ''"  # names the partial index


def release_superseded(tx: WriteTx, ns: int, by: dict[str, int], *, cause: HistoryCause, now_ns: int) -> None:
    """Say that what these memories (id to key) had superseded no longer is, with history."""
    gone = set(by.values())
    for some in chunks(by):
        rows = tx.connection.execute(
            sa.select(memories.c.key, memories.c.superseded_by, memories.c.cluster)
            .where(memories.c.ns == ns, memories.c.superseded_by.in_(some), sa.text(_SUPERSEDED_SQL))
            .order_by(memories.c.key)
        ).all()
        release_rows(
            tx, ns, [(row[0], row[1], row[2], by[row[1]]) for row in rows if row[0] not in gone], cause, now_ns
        )


def release_rows(
    tx: WriteTx, ns: int, rows: Iterable[tuple[int, str, int | None, int]], cause: HistoryCause, now_ns: int
) -> None:
    """Clear `superseded_by` of memories: (key, what it is, cluster, key of the memory that causes it)."""
    found = list(rows)
    kind = ChangeKind.MEMORY_SUPERSEDED
    revisions = tx.log_memories(ns, ((key, kind, cluster, None) for key, _, cluster, _ in found), time_ns=now_ns)
    history = [
        (revisions[key], ns, key, causing, now_ns, to_json({"superseded_by": before}), cause, "", cluster)
        for key, before, cluster, causing in found
    ]
    tx.executemany(_INSERT_HISTORY, history)
    tx.executemany(_RELEASE, [(revision, now_ns, ns, key) for key, revision in revisions.items()])


def forget_in_profiles(tx: WriteTx, ns: int, keys: Collection[int], homes: Collection[int], *, now_ns: int) -> None:
    """Mark the home clusters' profiles stale, and take the memories out of all representatives."""
    found: dict[int, str] = {}
    columns = sa.select(clusters.c.cluster, clusters.c.representatives).where(clusters.c.ns == ns)
    named = sa.func.json_each(clusters.c.representatives).table_valued("value")
    for some in chunks(keys):
        names_one = sa.exists(sa.select(1).select_from(named).where(named.c.value.in_(some)))
        found.update(_pairs(tx, columns.where(names_one)))
    for some in chunks(homes):
        found.update(_pairs(tx, columns.where(clusters.c.cluster.in_(some))))
    gone = set(keys)
    logged: list[ChangeRow] = []
    updates = []
    for cluster in sorted(found):
        kept = to_json([key for key in json.loads(found[cluster]) if key not in gone])
        revision = tx.next_revision()
        logged.append((revision, ns, ChangeKind.CLUSTER_PUT, cluster, None, now_ns, None, None))
        updates.append((kept, revision, now_ns, ns, cluster))
    tx.log_changes(logged)
    tx.executemany(_REPRESENT, updates)


def clean_history(tx: WriteTx, ns: int, keys: list[int], gone: Collection[str]) -> None:
    """Take reasons of links to memories that go out of the older values that history keeps."""
    h = memory_history.c
    rows = tx.connection.execute(sa.select(h.revision, h.old).where(h.ns == ns, h.key.in_(keys))).all()
    cleaned = []
    for revision, text in rows:
        old = json.loads(text)
        if "links" in old:
            old["links"] = without_reasons(old["links"], gone)
            if (new := to_json(old)) != text:
                cleaned.append((new, revision))
    tx.executemany(REWRITE_HISTORY, cleaned)


def without_reasons(links: str, gone: Collection[str]) -> str:
    """Return links (JSON) with the reasons of those to the memories `gone` left out."""
    return links_to_json(
        [replace(link, reason="") if link.memory_id in gone else link for link in links_from_json(links)]
    )


def chunks(values: Iterable[T]) -> Iterator[list[T]]:
    """Split values into lists that fit an IN list of a write."""
    rest = iter(values)
    while some := list(islice(rest, CHUNK)):
        yield some


def _pairs(tx: WriteTx, statement: sa.Select[int, str]) -> list[tuple[int, str]]:
    return [(number, text) for number, text in tx.connection.execute(statement)]
