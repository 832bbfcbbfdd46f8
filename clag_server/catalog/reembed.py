"""Switching a namespace to another embedder: pin, vectors and sums, in one transaction.

One transaction, so that a kill at any moment leaves one of the two spaces and never a mixture. It writes every
vector of the namespace (about 2 KiB a memory for 384 numbers), and other writes wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from clag_server.catalog import lexical
from clag_server.catalog.api import EmbedderPin
from clag_server.catalog.namespaces import require_live
from clag_server.catalog.placements import Placed, forget_failures, queue_ops
from clag_server.catalog.rows import vector_to_blob
from clag_server.catalog.schema import clusters, episodes, memories, memory_history, namespaces
from clag_server.catalog.sums import Touched, settle
from clag_server.catalog.transaction import WriteTx, compile_insert
from clag_server.types.change import HistoryCause
from clag_server.types.memory import Matrix, MemoryState

_INSERT_HISTORY: Final = compile_insert(memory_history)
_EMBED: Final = (
    "UPDATE memories SET embedding = ?, client_embedding = 0, revision = ?, update_time_ns = ? "
    "WHERE key = ? AND ns = ?"
)
_EPISODE_SUM: Final = "UPDATE episodes SET vector_sum = ? WHERE ns = ? AND episode = ?"
_CLUSTER_SUM: Final = "UPDATE clusters SET vector_sum = ? WHERE ns = ? AND cluster = ?"
_UNPLACED: Final = {
    "state": int(MemoryState.STORED),
    "error": "",
    "routing": None,
    "cluster": None,
    "episode": None,
    "placement_id": None,
    "embedding": None,
    "client_embedding": False,
}


def switch_embedder(
    tx: WriteTx,
    ns: int,
    embedder: EmbedderPin,
    batches: Iterable[tuple[NDArray[np.int64], Matrix]],
    *,
    now_ns: int,
) -> int:
    """Switch a namespace (see `catalog.api_reembed.EmbedderSwitch`); returns how many memories have new vectors."""
    require_live(tx, ns)
    tx.connection.execute(
        sa.update(namespaces)
        .where(namespaces.c.ns == ns)
        .values(embedder_name=embedder.name, embedder_fingerprint=embedder.fingerprint, embedder_dim=embedder.dim)
    )
    _drop_unplaced_vectors(tx, ns)
    m = memories.c
    placed = tx.connection.execute(
        sa.select(m.key, m.episode, m.cluster).where(m.ns == ns, m.placement_id.is_not(None)).order_by(m.key)
    ).all()
    table = np.array([tuple(row) for row in placed], dtype=np.int64).reshape(len(placed), 3)
    known, seats = np.unique(table[:, 1], return_inverse=True)
    sums = np.zeros((len(known), embedder.dim), dtype=np.float32)
    embedded = np.zeros(len(table), dtype=np.bool_)
    for keys, vectors in batches:
        rows = np.minimum(np.searchsorted(table[:, 0], keys), max(len(table) - 1, 0))
        here = table[rows, 0] == keys if len(table) else np.zeros(len(keys), dtype=np.bool_)
        rows, vectors = rows[here], vectors[here]
        _embed(tx, ns, table[rows], vectors, embedder.name, now_ns=now_ns)
        np.add.at(sums, seats[rows], vectors)
        embedded[rows] = True
    _write_sums(tx, ns, known, sums)
    _unplace(tx, ns, table[~embedded, 0], now_ns=now_ns)
    return int(embedded.sum())


def _drop_unplaced_vectors(tx: WriteTx, ns: int) -> None:
    """Forget clients' embeddings of memories that wait: they are of the old space."""
    waiting = sa.and_(memories.c.ns == ns, memories.c.placement_id.is_(None), memories.c.embedding.is_not(None))
    tx.connection.execute(sa.update(memories).where(waiting).values(embedding=None, client_embedding=False))


def _embed(tx: WriteTx, ns: int, spots: NDArray[np.int64], vectors: Matrix, model: str, *, now_ns: int) -> None:
    """Write vectors (n, dim) of placed memories, `spots` (n, 3) being keys, episodes and clusters."""
    updates, history = [], []
    for (key, _, cluster), vector in zip(spots.tolist(), vectors, strict=True):
        revision = tx.next_revision()
        updates.append((vector_to_blob(vector), revision, now_ns, key, ns))
        old = '{"embedding":"changed"}'
        history.append((revision, ns, key, key, now_ns, old, int(HistoryCause.REEMBEDDING), model, cluster))
    tx.executemany(_EMBED, updates)
    tx.executemany(_INSERT_HISTORY, history)


def _write_sums(tx: WriteTx, ns: int, known: NDArray[np.int64], sums: Matrix) -> None:
    """Write the sums of all episodes (`known` has numbers (n,), `sums` their rows) and of all clusters."""
    dim = sums.shape[1]
    zero = vector_to_blob(np.zeros(dim, dtype=np.float32))
    seat = {int(number): row for row, number in enumerate(known)}
    found = tx.connection.execute(
        sa.select(episodes.c.episode, episodes.c.cluster, episodes.c.open).where(episodes.c.ns == ns)
    ).all()
    tx.executemany(
        _EPISODE_SUM,
        [(vector_to_blob(sums[seat[e]]) if e in seat else zero, ns, e) for e, _, _ in found],
    )
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    units = sums / np.where(norms > 0.0, norms, 1.0)
    totals: dict[int, NDArray[np.float32]] = {}
    for episode, cluster, is_open in found:
        if not is_open and episode in seat:
            totals[cluster] = totals.get(cluster, np.zeros(dim, dtype=np.float32)) + units[seat[episode]]
    numbers = tx.connection.scalars(sa.select(clusters.c.cluster).where(clusters.c.ns == ns)).all()
    tx.executemany(
        _CLUSTER_SUM,
        [(vector_to_blob(totals[n]) if n in totals else zero, ns, n) for n in numbers],
    )


def _unplace(tx: WriteTx, ns: int, keys: NDArray[np.int64], *, now_ns: int) -> None:
    """Take memories that could not be embedded out of their places: the pipeline tries again, and says why not."""
    m = memories.c
    touched = Touched(always=True)
    for key in keys.tolist():
        row = tx.connection.execute(
            sa.select(m.key, m.placement_id, m.cluster, m.event_time_ns, m.episode).where(m.key == key)
        ).one()
        queue_ops(tx, ns, puts=[], deletes=[Placed(key, row.placement_id, row.cluster, row.event_time_ns)])
        tx.connection.execute(
            sa.update(memories)
            .where(m.key == key, m.ns == ns)
            .values(**_UNPLACED, revision=tx.next_revision(), update_time_ns=now_ns)
        )
        touched.episodes.add(row.episode)
        touched.clusters.add(row.cluster)
    lexical.remove(tx, ns, keys.tolist())
    forget_failures(tx, keys.tolist())
    if len(keys):
        settle(tx, ns, touched)
