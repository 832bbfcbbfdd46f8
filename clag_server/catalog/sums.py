"""Counts and sums of episodes and clusters, kept true to the memories that are in them.

The domain writes both whole, from its own mirror. A memory that was deleted between its reading and its writing
would leave them wrong for ever, so what a plan or a delete touched is counted here, in the same transaction, and
summed anew from the members where the count differs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import sqlalchemy as sa

from clag_server.catalog.reads import dimension
from clag_server.catalog.rows import vector_from_blob, vector_to_blob
from clag_server.catalog.schema import clusters, episodes, memories
from clag_server.catalog.transaction import WriteTx
from clag_server.types.memory import Vector


@dataclass(slots=True)
class Touched:
    """Numbers of episodes and clusters that may need new sums; `always` ones are summed without counting first."""

    episodes: set[int] = field(default_factory=set)
    clusters: set[int] = field(default_factory=set)
    always: bool = False


def settle(tx: WriteTx, ns: int, touched: Touched) -> None:
    """Make counts and sums of the touched episodes and clusters those of their members.

    A closed episode that lost its last member is removed; an open one stays, empty, for its next member.
    """
    for episode in sorted(touched.episodes):
        _settle_episode(tx, ns, episode, touched)
    for cluster in sorted(touched.clusters):
        _settle_cluster(tx, ns, cluster, always=touched.always)


def _settle_episode(tx: WriteTx, ns: int, episode: int, touched: Touched) -> None:
    here = sa.and_(episodes.c.ns == ns, episodes.c.episode == episode)
    row = tx.connection.execute(
        sa.select(episodes.c.memory_count, episodes.c.open, episodes.c.cluster).where(here)
    ).one_or_none()
    if row is None:
        return
    members = sa.and_(memories.c.ns == ns, memories.c.episode == episode)
    count = tx.connection.scalar(sa.select(sa.func.count()).select_from(memories).where(members)) or 0
    if count == row.memory_count and not touched.always:
        return
    touched.always = True
    touched.clusters.add(row.cluster)
    if count == 0 and not row.open:
        tx.connection.execute(sa.delete(episodes).where(here))
        return
    found = tx.connection.execute(sa.select(memories.c.embedding, memories.c.session_position).where(members)).all()
    values: dict[str, object] = {"memory_count": count, "vector_sum": _sum(tx, ns, [r.embedding for r in found])}
    if found:
        values["first_position"] = min(r.session_position for r in found)
        values["last_position"] = max(r.session_position for r in found)
    tx.connection.execute(sa.update(episodes).where(here).values(**values))


def _settle_cluster(tx: WriteTx, ns: int, cluster: int, *, always: bool) -> None:
    here = sa.and_(clusters.c.ns == ns, clusters.c.cluster == cluster)
    stored = tx.connection.scalar(sa.select(clusters.c.memory_count).where(here))
    if stored is None:
        return
    count = tx.connection.scalar(
        sa.select(sa.func.count()).select_from(memories).where(memories.c.ns == ns, memories.c.cluster == cluster)
    )
    if count == stored and not always:
        return
    closed = tx.connection.execute(
        sa.select(episodes.c.vector_sum).where(
            episodes.c.ns == ns, episodes.c.cluster == cluster, sa.not_(episodes.c.open)
        )
    ).all()
    centroids = [vector_to_blob(_unit(vector_from_blob(row.vector_sum))) for row in closed]
    tx.connection.execute(
        sa.update(clusters)
        .where(here)
        .values(memory_count=count, closed_episodes=len(closed), vector_sum=_sum(tx, ns, centroids))
    )


def _sum(tx: WriteTx, ns: int, blobs: list[bytes]) -> bytes:
    """Return the sum of vectors; of none, a zero of the namespace's dimension."""
    if not blobs:
        return vector_to_blob(np.zeros(dimension(tx.connection, ns), dtype=np.float32))
    matrix = np.frombuffer(b"".join(blobs), dtype=np.float32).reshape(len(blobs), -1)
    return vector_to_blob(matrix.sum(axis=0, dtype=np.float64).astype(np.float32))


def _unit(vector: Vector) -> Vector:
    norm = float(np.linalg.norm(vector))
    return vector if norm == 0.0 else np.asarray(vector / norm, dtype=np.float32)
