"""The part of the SQLite catalog that edits clusters; what each method promises is said in `api_clusters`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa

from clag_server.catalog import cluster_log, plans, reads
from clag_server.catalog.api_clusters import EditAnswer
from clag_server.catalog.rows import to_json
from clag_server.catalog.schema import UNDECIDED_SQL, memories, memory_history
from clag_server.catalog.sqlite_base import SqliteBase
from clag_server.catalog.transaction import WriteTx, compile_insert
from clag_server.types.change import HistoryCause
from clag_server.types.cluster import ClusterHistoryEntry, PlacementPlan
from clag_server.types.errors import RequestIdReused
from clag_server.types.memory import Memory

_INSERT_HISTORY = compile_insert(memory_history)
_IDS_PER_READ = 500


class SqliteClusters(SqliteBase):
    """Implements `ClusterEdits`."""

    async def edit_clusters(self, ns: int, plan: PlacementPlan, *, answer: EditAnswer | None, now_ns: int) -> int:
        """Apply an edit."""
        return await self._write_into(ns, lambda tx: _edit(tx, ns, plan, answer, now_ns=now_ns))

    async def edit_answer(self, ns: int, request_id: str, digest: bytes) -> str | None:
        """Return an earlier answer."""
        return await self._read(lambda c: cluster_log.find_answer(c, ns, request_id, digest))

    async def cluster_history(
        self, ns: int, cluster: int, *, before: int | None, limit: int
    ) -> Sequence[ClusterHistoryEntry]:
        """Return a page of a cluster's history."""
        return await self._read(lambda c: cluster_log.read_notes(c, ns, cluster, before=before, limit=limit))

    async def last_access(self, ns: int, clusters: Sequence[int]) -> Mapping[int, int]:
        """Return when members were last accessed."""
        return await self._read(lambda c: _last_access(c, ns, clusters))

    async def memories_by_id(
        self, ns: int, memory_ids: Sequence[str], *, embeddings: bool = False
    ) -> Sequence[Memory]:
        """Return memories by their ids."""
        return await self._read(lambda c: _by_ids(c, ns, memory_ids, embeddings=embeddings))

    async def undecided_episodes(self, ns: int, *, after: int, limit: int) -> Sequence[int]:
        """Return episodes that await the SLM."""
        statement = (
            sa.select(memories.c.episode)
            .where(sa.text(UNDECIDED_SQL), memories.c.ns == ns, memories.c.episode > after)
            .distinct()
            .order_by(memories.c.episode)
            .limit(limit)
        )
        return await self._read(lambda c: c.scalars(statement).all())

    async def undecided_namespaces(self) -> Collection[int]:
        """Return the namespaces with such episodes."""
        statement = sa.select(memories.c.ns).where(sa.text(UNDECIDED_SQL)).distinct()
        return await self._read(lambda c: c.scalars(statement).all())


def _edit(tx: WriteTx, ns: int, plan: PlacementPlan, answer: EditAnswer | None, *, now_ns: int) -> int:
    if (
        answer is not None
        and cluster_log.find_answer(tx.connection, ns, answer.request_id, answer.digest) is not None
    ):
        raise RequestIdReused(answer.request_id)  # the same request, twice at once: the second asks again
    wanted = {placement.key: placement.cluster for placement in plan.placements}
    rows = tx.connection.execute(
        sa.select(memories.c.key, memories.c.cluster).where(
            memories.c.ns == ns, memories.c.key.in_(sorted(wanted)), memories.c.cluster.is_not(None)
        )
    )
    before = {row.key: row.cluster for row in rows}
    plans.apply_plan(tx, ns, plan, now_ns=now_ns)
    tx.executemany(
        _INSERT_HISTORY,
        [
            (
                tx.next_revision(), ns, key, key, now_ns, to_json({"cluster": old}),
                HistoryCause.CLUSTER_EDIT, "", wanted[key],
            )
            for key, old in sorted(before.items())
            if old != wanted[key]
        ],
    )  # fmt: skip
    if answer is not None:
        cluster_log.save_answer(tx, ns, answer, now_ns=now_ns)
    return tx.revision


def _last_access(connection: sa.Connection, ns: int, clusters: Sequence[int]) -> Mapping[int, int]:
    m = memories.c
    found: dict[int, int] = {}
    for number in clusters:  # one short look at the index of members each, however many there are elsewhere
        last = connection.scalar(
            sa.select(sa.func.max(m.last_access_time_ns)).where(m.ns == ns, m.cluster == number)
        )
        if last is not None:
            found[number] = last
    return found


def _by_ids(connection: sa.Connection, ns: int, memory_ids: Sequence[str], *, embeddings: bool) -> Sequence[Memory]:
    keys: dict[str, int] = {}
    for start in range(0, len(memory_ids), _IDS_PER_READ):
        some = memory_ids[start : start + _IDS_PER_READ]
        rows = connection.execute(
            sa.select(memories.c.memory_id, memories.c.key).where(
                memories.c.ns == ns, memories.c.memory_id.in_(some)
            )
        )
        keys.update((row.memory_id, row.key) for row in rows)
    return reads.by_keys(
        connection, ns, [keys[memory_id] for memory_id in memory_ids if memory_id in keys], embeddings=embeddings
    )
