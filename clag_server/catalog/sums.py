"""Counts and sums of episodes and clusters, kept true to the memories that are in them.

The domain writes both whole, from its own mirror. A memory that was deleted between its reading and its writing
would leave them wrong for ever, so what a plan or a delete touched is counted here, in the same transaction, and
summed anew from the members where the count differs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from clag_server.catalog.reads import dimension
from clag_server.catalog.rows import vector_from_blob, vector_to_blob
from clag_server.catalog.transaction import WriteTx
from clag_server.types.memory import Vector

# Plain SQL: a batch settles hundreds, and Core's building of a statement would cost more than running it.
_READ_EPISODE: Final = "SELECT memory_count, open, cluster FROM episodes WHERE ns = ? AND episode = ?"
_COUNT_IN_EPISODE: Final = "SELECT COUNT(*) FROM memories WHERE ns = ? AND episode = ?"
_READ_MEMBERS: Final = "SELECT embedding, session_position FROM memories WHERE ns = ? AND episode = ?"
_REMOVE_EPISODE: Final = "DELETE FROM episodes WHERE ns = ? AND episode = ?"
_SAVE_EPISODE: Final = "UPDATE episodes SET memory_count = ?, vector_sum = ? WHERE ns = ? AND episode = ?"
_SAVE_POSITIONS: Final = "UPDATE episodes SET first_position = ?, last_position = ? WHERE ns = ? AND episode = ?"
_READ_CLUSTER: Final = "SELECT memory_count FROM clusters WHERE ns = ? AND cluster = ?"
_COUNT_IN_CLUSTER: Final = "SELECT COUNT(*) FROM memories WHERE ns = ? AND cluster = ?"
_READ_CLOSED: Final = "SELECT vector_sum FROM episodes WHERE ns = ? AND cluster = ? AND NOT open"
_SAVE_CLUSTER: Final = (
    "UPDATE clusters SET memory_count = ?, closed_episodes = ?, vector_sum = ? WHERE ns = ? AND cluster = ?"
)


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
    row = tx.connection.exec_driver_sql(_READ_EPISODE, (ns, episode)).one_or_none()
    if row is None:
        return
    stored, is_open, cluster = row
    count = tx.connection.exec_driver_sql(_COUNT_IN_EPISODE, (ns, episode)).scalar() or 0
    if count == stored and not touched.always:
        return
    touched.always = True
    touched.clusters.add(cluster)
    if count == 0 and not is_open:
        tx.executemany(_REMOVE_EPISODE, [(ns, episode)])
        return
    members = tx.connection.exec_driver_sql(_READ_MEMBERS, (ns, episode)).all()
    summed = _sum(tx, ns, [embedding for embedding, _ in members])
    tx.executemany(_SAVE_EPISODE, [(count, summed, ns, episode)])
    if members:
        positions = [position for _, position in members]
        tx.executemany(_SAVE_POSITIONS, [(min(positions), max(positions), ns, episode)])


def _settle_cluster(tx: WriteTx, ns: int, cluster: int, *, always: bool) -> None:
    stored = tx.connection.exec_driver_sql(_READ_CLUSTER, (ns, cluster)).scalar()
    if stored is None:
        return
    count = tx.connection.exec_driver_sql(_COUNT_IN_CLUSTER, (ns, cluster)).scalar() or 0
    if count == stored and not always:
        return
    closed = tx.connection.exec_driver_sql(_READ_CLOSED, (ns, cluster)).all()
    centroids = [vector_to_blob(_unit(vector_from_blob(vector_sum))) for (vector_sum,) in closed]
    tx.executemany(_SAVE_CLUSTER, [(count, len(closed), _sum(tx, ns, centroids), ns, cluster)])


def _sum(tx: WriteTx, ns: int, blobs: list[bytes]) -> bytes:
    """Return the sum of vectors; of none, a zero of the namespace's dimension."""
    if not blobs:
        return vector_to_blob(np.zeros(dimension(tx.connection, ns), dtype=np.float32))
    matrix = np.frombuffer(b"".join(blobs), dtype=np.float32).reshape(len(blobs), -1)
    return vector_to_blob(matrix.sum(axis=0, dtype=np.float64).astype(np.float32))


def _unit(vector: Vector) -> Vector:
    norm = float(np.linalg.norm(vector))
    return vector if norm == 0.0 else np.asarray(vector / norm, dtype=np.float32)
