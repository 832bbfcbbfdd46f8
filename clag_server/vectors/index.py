"""The vector index on Milvus: partition search per cluster, right at every moment.

Three sources answer a search: the collection (what is written), the overlay (what is committed but not written),
and, while the collection cannot be searched, a scan of the catalog. Each namespace has its own worker, state and
overlay; one backend serves all.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from clag_server.catalog.api import IndexFeed
from clag_server.types.memory import Vector
from clag_server.vectors.address import MilvusServer
from clag_server.vectors.api import IndexState, IndexStatus, VectorHit, VectorHits
from clag_server.vectors.backend import MilvusBackend, Session
from clag_server.vectors.errors import BackendAwayError, BackendFaultError
from clag_server.vectors.milvus import MAX_HITS
from clag_server.vectors.overlay import OverlayView
from clag_server.vectors.partitions import SearchScope, collection_name
from clag_server.vectors.record import IndexRecord, RecordFile, recorded_namespaces
from clag_server.vectors.scan import CatalogScan
from clag_server.vectors.settings import IndexSettings
from clag_server.vectors.topk import merge
from clag_server.vectors.worker import IndexWorker

__all__ = ["MilvusIndex"]

_log = structlog.get_logger("clag.vectors")

T = TypeVar("T")

_WORST_FIRST = (IndexState.DEGRADED, IndexState.REBUILDING, IndexState.STARTING, IndexState.READY)


@dataclass(frozen=True, slots=True)
class _Namespace:
    """What belongs to one namespace."""

    worker: IndexWorker
    scan: CatalogScan


class MilvusIndex:
    """`VectorIndex` on Milvus Lite (a supervised child) or a Milvus server.

    Args:
        feed: The catalog, open before `start` and until after `stop`.
        data_dir: The server's data directory; the index lives in `index/` under it.
        server: A Milvus server; None runs Milvus Lite.
        settings: Sizes and times.
    """

    def __init__(
        self,
        feed: IndexFeed,
        data_dir: Path,
        *,
        server: MilvusServer | None = None,
        settings: IndexSettings | None = None,
    ) -> None:
        self._feed = feed
        self._folder = data_dir / "index"
        self._settings = settings or IndexSettings()
        self._backend = MilvusBackend(
            self._folder, feed=feed, server=server, settings=self._settings, on_change=self._backend_changed
        )
        self._namespaces: dict[int, _Namespace] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self._started = False

    async def start(self) -> None:
        """Start the backend and the workers; returns at once, the index loads behind (see `status`)."""
        self._started = True
        await self._backend.start()
        for namespace in self._namespaces.values():
            namespace.worker.start()

    async def stop(self) -> None:
        """Write what is queued within a bounded time, flush, and stop the backend. Nothing queued is lost."""
        self._started = False
        workers = [namespace.worker for namespace in self._namespaces.values()]
        await asyncio.gather(*(worker.stop(self._settings.stop_timeout_s) for worker in workers))
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        await self._backend.stop()

    def notify(self, ns: int, dim: int) -> None:
        """Say that the catalog's outbox has new ops for the namespace (cheap; called after each commit).

        Call it once for each namespace at start-up too, so that its collection is opened before the first search.
        """
        self._namespace(ns, dim).worker.notify()

    async def search(self, ns: int, clusters: Sequence[int] | None, vector: Vector, *, limit: int) -> VectorHits:
        """Search the partitions of `clusters` (None: the whole namespace).

        Args:
            ns: The namespace.
            clusters: Catalog numbers of clusters; unknown ones hold nothing.
            vector: Unit vector, shape (dim,).
            limit: Most hits.

        Raises:
            StorageFailed: The catalog cannot be read.
        """
        if limit < 1 or (clusters is not None and not clusters):
            return VectorHits((), complete=True)
        namespace = self._namespace(ns, int(vector.shape[0]))
        await namespace.worker.outbox.refresh()
        view = namespace.worker.outbox.overlay.view(clusters)
        # Rows that are deleted but still in the collection must not push others out of the result.
        fetch = limit + len(view.deleted)
        found = await self._search_collection(namespace, ns, clusters, vector, view, fetch)
        if found is None:
            found = [await namespace.scan.search(clusters, vector, fetch)]
        return VectorHits(merge(found, limit, without=view.deleted), complete=True)

    async def drop(self, ns: int) -> None:
        """Drop everything of a namespace. While the backend is away, it is done when the backend is back."""
        namespace = self._namespaces.pop(ns, None)
        if namespace is not None:
            await namespace.worker.stop(0)
        file = RecordFile(self._folder, ns)
        gone = IndexRecord(dim=0, stamp="", applied_seq=-1, digest=0, clean=False, dropped=True)
        await self._backend.write(file.save, gone)
        session = self._backend.session
        if session is not None:
            try:
                await self._finish_drop(session, ns)
            except (BackendAwayError, BackendFaultError) as error:
                _log.warning("collection is dropped later", ns=ns, error=str(error))

    async def rebuild(self, ns: int, dim: int) -> None:
        """Have the namespace's collection rebuilt from the catalog; returns at once (see `namespace_status`)."""
        self._namespace(ns, dim).worker.want_rebuild("asked for")

    async def settle(self, ns: int) -> None:
        """Wait until the namespace is READY and all that was announced before is written and durable."""
        await self._namespaces[ns].worker.settle()

    def status(self) -> IndexStatus:
        """The state of the backend as a whole: the worst of its namespaces, sums of the rest."""
        parts = [namespace.worker.status for namespace in self._namespaces.values()]
        if self._backend.session is None and not any(part.state is IndexState.DEGRADED for part in parts):
            pending = sum(part.pending_ops for part in parts)
            return IndexStatus(IndexState.STARTING, self._backend.reason, 0, 0, pending)
        if not parts:
            return IndexStatus(IndexState.READY, "", 0, 0, 0)
        worst = min(parts, key=lambda part: _WORST_FIRST.index(part.state))
        return IndexStatus(
            worst.state,
            worst.reason,
            sum(part.done for part in parts),
            sum(part.total for part in parts),
            sum(part.pending_ops for part in parts),
        )

    def namespace_status(self, ns: int) -> IndexStatus:
        """The state of one namespace's collection; STARTING for one that was never named."""
        namespace = self._namespaces.get(ns)
        if namespace is None:
            return IndexStatus(IndexState.STARTING, "not opened yet", 0, 0, 0)
        return namespace.worker.status

    async def _search_collection(
        self,
        namespace: _Namespace,
        ns: int,
        clusters: Sequence[int] | None,
        vector: Vector,
        view: OverlayView,
        fetch: int,
    ) -> list[list[VectorHit]] | None:
        """Search collection and overlay; None when that cannot give the whole answer now."""
        worker = namespace.worker
        for last_try in (False, True):
            session = worker.ready_session
            if session is None or session.lost.is_set() or not worker.outbox.caught_up or fetch > MAX_HITS:
                return None
            namespace.scan.release()
            scope = None if clusters is None else worker.layout.scope(clusters)

            try:
                call = self._backend.read(_search_both, session, ns, scope, view, vector, fetch)
                return await _unless_lost(call, session)
            except BackendAwayError as error:
                _log.warning("vector index is away, searching the catalog", ns=ns, error=str(error))
                if error.hung:
                    await self._backend.restart(session, str(error))
                return None
            except BackendFaultError as error:
                # Once more: a partition may have been dropped since its name was looked up.
                if last_try:
                    worker.want_rebuild(str(error))
        return None

    def _namespace(self, ns: int, dim: int) -> _Namespace:
        namespace = self._namespaces.get(ns)
        if namespace is None:
            worker = IndexWorker(
                ns,
                dim,
                feed=self._feed,
                backend=self._backend,
                folder=self._folder,
                settings=self._settings,
            )
            scan = CatalogScan(
                self._feed,
                ns,
                page_rows=self._settings.page_rows,
                keep_rows=self._settings.scan_rows,
                backend=self._backend,
            )
            namespace = self._namespaces[ns] = _Namespace(worker, scan)
            if self._started:
                worker.start()
        elif namespace.worker.dim != dim:
            namespace.worker.dim = dim
            namespace.worker.want_rebuild(f"the vectors have {dim} dimensions now")
        return namespace

    def _backend_changed(self) -> None:
        for namespace in self._namespaces.values():
            namespace.worker.backend_changed()
        if self._backend.session is not None:
            self._sweeping = asyncio.create_task(
                self._sweep(self._backend.session), name="sweep dropped namespaces"
            )

    async def _sweep(self, session: Session) -> None:
        """Finish drops that a lost backend or a crash cut short."""
        for ns in await self._backend.write(recorded_namespaces, self._folder):
            record = await self._backend.write(RecordFile(self._folder, ns).load)
            if record is None or not record.dropped or ns in self._namespaces:
                continue
            try:
                await self._finish_drop(session, ns)
            except (BackendAwayError, BackendFaultError, OSError) as error:
                _log.warning("collection is dropped later", ns=ns, error=str(error))

    async def _finish_drop(self, session: Session, ns: int) -> None:
        await self._backend.write(session.connection.drop, ns)
        # A collection that Milvus Lite does not recognise any more is left by its drop; a server has no folder.
        leftovers = self._folder / "lite" / "collections" / collection_name(ns)
        await self._backend.write(shutil.rmtree, leftovers, ignore_errors=True)
        await self._backend.write(RecordFile(self._folder, ns).remove)


def _search_both(
    session: Session, ns: int, scope: SearchScope | None, view: OverlayView, vector: Vector, limit: int
) -> list[list[VectorHit]]:
    return [*session.connection.search(ns, scope, vector, limit), view.search(vector, limit)]


async def _unless_lost(call: Awaitable[T], session: Session) -> T:
    """Await a call to the backend, but not past the backend's end."""
    answer = asyncio.ensure_future(call)
    lost = asyncio.ensure_future(session.lost.wait())
    try:
        await asyncio.wait({answer, lost}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise BackendAwayError("the backend ended during a search")
        return answer.result()
    finally:
        lost.cancel()
        answer.cancel()
