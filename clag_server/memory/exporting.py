"""Exports: a namespace as of one revision, read at the reader's pace, resumable at any row for a while.

An export makes a snapshot file of its own, so it sees one state however long it takes, and holds nobody up. A
snapshot is a copy on disk: there are few at once, and each goes when a later export of its namespace shows that the
last batch arrived, soon after its end, or when nobody came back for it.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from clag_server.catalog.api import Catalog, Namespace
from clag_server.memory.feed_config import ExportConfig
from clag_server.memory.service import ClusterView
from clag_server.memory.snapshots import Snapshot, in_directory, name_of
from clag_server.types.cluster import Cluster
from clag_server.types.errors import NamespaceDeleted, NotFound, Overloaded, SnapshotGone, StorageFailed
from clag_server.types.filters import Filter
from clag_server.types.memory import Memory

_log = structlog.get_logger(__name__)

PAGE_ROWS: Final = 128
"""Memories that are read at once: what a reader that does not read holds, a few MiB at most."""

FINISHED_KEEP_S: Final = 60.0
"""How long a snapshot stays after its last batch was sent: that batch may have been lost on its way."""

SWEEP_S: Final = 15.0
RETRY_AFTER_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ExportPosition:
    """A row of a snapshot: `stage` 0 is the namespace, 1 a cluster, 2 a memory; `after` is its number or key."""

    stage: int = -1
    after: int = 0


ExportRecord: TypeAlias = Namespace | ClusterView | Memory


@dataclass(frozen=True, slots=True)
class ExportRow:
    """A row and the position after it."""

    record: ExportRecord
    position: ExportPosition


@dataclass(frozen=True, slots=True)
class ExportPage:
    """Some rows; `last` says that nothing follows."""

    rows: Sequence[ExportRow]
    last: bool


class OpenExport:
    """One reader of a snapshot."""

    def __init__(
        self,
        snapshot: Snapshot,
        catalog: Catalog,
        namespace: Namespace,
        where: Filter | None,
    ) -> None:
        self._catalog = catalog
        self._namespace = namespace
        self._where = where
        self.ns = snapshot.ns
        self.snapshot_id = snapshot.snapshot_id
        self.revision = snapshot.revision
        self.finished = False
        """Whether the last batch was sent: whoever sends it says so."""

    async def total(self) -> int:
        """Count the rows of this export: the namespace, its clusters, and the memories that match."""
        ns = self._namespace.ns
        if self._where is None:
            memories = sum((await self._catalog.stats(ns)).by_state.values())
        else:
            memories, _ = await self._catalog.count_matching(ns, self._where)
        return 1 + len(await self._catalog.clusters(ns)) + memories

    async def pages(self, position: ExportPosition, *, embeddings: bool) -> AsyncGenerator[ExportPage, None]:
        """Yield what follows a position: the namespace, clusters by number, memories by arrival."""
        if position.stage < 0:
            yield ExportPage([ExportRow(self._namespace, ExportPosition(0))], last=False)
        if position.stage < 2:
            number = position.after if position.stage == 1 else -1
            clusters = [c for c in await self._catalog.clusters(self._namespace.ns) if c.cluster > number]
            episodes = Counter(e.cluster for e in await self._catalog.episodes(self._namespace.ns))
            for start in range(0, len(clusters), PAGE_ROWS):
                rows = await self._views(clusters[start : start + PAGE_ROWS], episodes)
                yield ExportPage(rows, last=False)
        key: int | None = position.after if position.stage == 2 else 0
        while key is not None:
            page = await self._catalog.list_memories(
                self._namespace.ns, where=self._where, after=key, limit=PAGE_ROWS, embeddings=embeddings
            )
            key = page.next_after
            yield ExportPage(
                [ExportRow(memory, ExportPosition(2, memory.key)) for memory in page.memories], last=key is None
            )

    async def _views(self, clusters: Sequence[Cluster], episodes: Counter[int]) -> list[ExportRow]:
        keys = sorted({key for cluster in clusters for key in cluster.representatives})
        ids = {m.key: m.memory_id for m in await self._catalog.memories(self._namespace.ns, keys)}
        return [
            ExportRow(
                ClusterView(
                    cluster=cluster,
                    representative_ids=tuple(ids[key] for key in cluster.representatives if key in ids),
                    episodes=episodes[cluster.cluster],
                ),
                ExportPosition(1, cluster.cluster),
            )
            for cluster in clusters
        ]


class Exports:
    """The snapshots of a server. `start` once, `stop` at the end.

    Args:
        catalog: The system of record.
        directory: Where snapshots are kept.
        config: Bounds.
        open_catalog: Makes a catalog, not yet open, of a snapshot's file.
    """

    def __init__(
        self, catalog: Catalog, directory: Path, config: ExportConfig, *, open_catalog: Callable[[Path], Catalog]
    ) -> None:
        self._catalog = catalog
        self._directory = directory
        self._config = config
        self._open_catalog = open_catalog
        self._users: Counter[str] = Counter()
        self._finished: dict[str, float] = {}
        self._making = 0
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Remove what is left of unfinished snapshots, and sweep from now on."""
        await asyncio.to_thread(_prepare, self._directory)
        self._sweeping = asyncio.create_task(self._sweep_for_ever(), name="export-sweep")

    async def stop(self) -> None:
        """Stop sweeping; snapshots stay for the next start."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)

    @asynccontextmanager
    async def open(self, name: str, *, snapshot_id: str, where: Filter | None) -> AsyncIterator[OpenExport]:
        """Open a snapshot, or make one when `snapshot_id` is "".

        Raises:
            NotFound: there is no such namespace.
            NamespaceDeleted: it is being deleted.
            SnapshotGone: the snapshot does not exist any more, or is of another namespace.
            Overloaded: there are as many snapshots as may be.
        """
        ns = await self.present(name, None)
        snapshot = self._found(snapshot_id, ns) if snapshot_id else await self._make(ns)
        self._users[snapshot.snapshot_id] += 1
        self._finished.pop(snapshot.snapshot_id, None)
        catalog = self._open_catalog(snapshot.file)
        export: OpenExport | None = None
        try:
            snapshot.touch()
            await catalog.open()
            export = OpenExport(snapshot, catalog, await catalog.get_namespace(name), where)
            yield export
        finally:
            await catalog.close()
            if export is not None and export.finished:
                self._finished[snapshot.snapshot_id] = time.monotonic()
            self._users[snapshot.snapshot_id] -= 1
            if not self._users[snapshot.snapshot_id]:
                del self._users[snapshot.snapshot_id]

    async def present(self, name: str, ns: int | None) -> int:
        """Return the namespace's number. Raises NotFound, or NamespaceDeleted when it is not `ns` any more."""
        try:
            namespace = await self._catalog.get_namespace(name)
        except NotFound:
            if ns is None:
                raise
            raise NamespaceDeleted(name) from None
        if namespace.deleting or (ns is not None and namespace.ns != ns):
            raise NamespaceDeleted(name)
        return namespace.ns

    def _found(self, snapshot_id: str, ns: int) -> Snapshot:
        for snapshot in in_directory(self._directory):
            if snapshot.snapshot_id == snapshot_id and snapshot.ns == ns:
                return snapshot
        raise SnapshotGone

    async def _make(self, ns: int) -> Snapshot:
        self._make_room(ns)
        snapshot_id = secrets.token_hex(16)
        making = self._directory / f"{snapshot_id}.making"
        self._making += 1
        try:
            making.mkdir(mode=0o700)
            revision = await self._catalog.snapshot(ns, making / Snapshot.FILE)
            made = self._directory / name_of(snapshot_id, ns, revision)
            making.rename(made)
        except OSError as error:
            raise StorageFailed(f"the export's snapshot cannot be written: {error.strerror}") from error
        finally:
            self._making -= 1
            await asyncio.to_thread(shutil.rmtree, making, ignore_errors=True)
        return Snapshot(made, snapshot_id, ns, revision)

    def _make_room(self, ns: int) -> None:
        """Remove finished snapshots: of the namespace always, others when there are too many."""
        there = in_directory(self._directory)
        for snapshot in there:
            if snapshot.ns == ns and snapshot.snapshot_id in self._finished:
                self._remove(snapshot)
        limit = self._config.snapshots_max
        for snapshot in there:
            if len(in_directory(self._directory)) + self._making < limit:
                return
            if snapshot.snapshot_id in self._finished:
                self._remove(snapshot)
        if len(in_directory(self._directory)) + self._making >= limit:
            raise Overloaded(f"exporting (at most {limit} snapshots at once)", retry_after_s=RETRY_AFTER_S)

    def _remove(self, snapshot: Snapshot) -> None:
        if not self._users[snapshot.snapshot_id]:
            shutil.rmtree(snapshot.directory, ignore_errors=True)
            self._finished.pop(snapshot.snapshot_id, None)
        if not self._users[snapshot.snapshot_id]:
            del self._users[snapshot.snapshot_id]

    async def sweep(self) -> None:
        """Remove snapshots that are finished, that nobody came back for, or whose namespace is gone."""
        alive = {n.ns for n in await self._catalog.list_namespaces() if not n.deleting}
        for snapshot in in_directory(self._directory):
            done = self._finished.get(snapshot.snapshot_id)
            finished = done is not None and time.monotonic() - done > FINISHED_KEEP_S
            unused = snapshot.idle_s() > self._config.snapshot_keep_s
            if (finished or unused or snapshot.ns not in alive) and not self._users.get(snapshot.snapshot_id):
                _log.info("export snapshot removed", finished=finished, unused=unused)
                await asyncio.to_thread(self._remove, snapshot)

    async def _sweep_for_ever(self) -> None:
        while True:
            try:
                await self.sweep()
            except (StorageFailed, OSError) as failed:
                _log.warning("export snapshots not swept", reason=str(failed))
            await asyncio.sleep(SWEEP_S)


def _prepare(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in directory.glob("*.making"):
        shutil.rmtree(path, ignore_errors=True)
