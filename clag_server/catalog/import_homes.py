"""Where imported memories go: clusters and episodes of the source as ours, and positions in their sessions."""

from __future__ import annotations

from clag_server.catalog import import_book as book
from clag_server.catalog.import_book import ImportBook
from clag_server.catalog.import_clusters import new_cluster
from clag_server.catalog.import_sessions import SessionPositions
from clag_server.catalog.transaction import WriteTx
from clag_server.types.transfer import ImportedCluster, ImportedMemory, ReservedPlace


class ImportHomes:
    """The places that one batch gives out, inside one transaction.

    Attributes:
        episodes_through: The greatest number that an episode got; 0 for none.
    """

    def __init__(self, tx: WriteTx, ns: int, entries: ImportBook, *, dim: int, keep: bool) -> None:
        self._tx = tx
        self._ns = ns
        self._book = entries
        self._dim = dim
        self._keep = keep
        self._positions = SessionPositions(tx, ns)
        self.episodes_through = 0

    def found(self, row: ImportedCluster) -> int | None:
        """Make a cluster of ours of one of the source; None when it was made before."""
        if self._book.get(book.CLUSTER, row.cluster_id) is not None:
            return None
        number = new_cluster(self._tx, self._ns, row, dim=self._dim)
        self._book.put(book.CLUSTER, row.cluster_id, number)
        for rank, memory_id in enumerate(row.representative_ids[: book.MAX_REPRESENTATIVES]):
            self._book.put(book.REPRESENTATIVE, memory_id, number * book.MAX_REPRESENTATIVES + rank)
        return number

    def of(self, row: ImportedMemory) -> ReservedPlace | None:
        """Return where a memory belongs by the source's own organization; None when it had no place there."""
        if not self._keep:
            return None
        cluster = self._book.get(book.CLUSTER, row.cluster_id) if row.cluster_id and row.episode_id else None
        if cluster is None:
            return None
        # Members of one episode are in one cluster; rows that say otherwise make an episode for each.
        source = f"{row.episode_id}@{row.cluster_id}"
        episode = self._book.get(book.EPISODE, source)
        if episode is None:
            episode = self._next_episode()
            self._book.put(book.EPISODE, source, episode)
        return ReservedPlace(episode, cluster)

    def position(self, row: ImportedMemory, before: tuple[str, int] | None) -> int:
        """Return a memory's place in its session: that which it has, else its own where that is free.

        Args:
            row: The memory.
            before: The session and position of the memory that it replaces.
        """
        session = row.memory.session_id
        if before is not None and before[0] == session:
            return before[1]
        return self._positions.take(session, row.memory.session_position if self._keep else 0)

    def save(self) -> None:
        """Write the sessions' next positions."""
        self._positions.save()

    def _next_episode(self) -> int:
        row = self._tx.connection.exec_driver_sql(
            "UPDATE namespaces SET next_episode = next_episode + 1 WHERE ns = ? RETURNING next_episode", (self._ns,)
        ).one()
        self.episodes_through = int(row[0]) - 1
        return self.episodes_through
