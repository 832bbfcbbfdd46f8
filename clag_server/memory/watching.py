"""Watching a namespace: its changes in order of revision, at the reader's pace, until the reader goes away.

The iterator is pulled: nothing is read before the last event was taken, so a reader that does not read costs one
page of the log. Values are read when their change is next, in small groups, so that they are as they are when sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Protocol

import structlog

from clag_server.catalog.api import Catalog
from clag_server.memory.change_tail import ChangeTail, Log
from clag_server.memory.cluster_views import views
from clag_server.memory.feed_config import WatchConfig
from clag_server.memory.registry import NamespaceRegistry
from clag_server.memory.service import ClusterView
from clag_server.types.change import Change, ChangeBatch, ChangeKind
from clag_server.types.errors import FieldViolation, InvalidField, NamespaceDeleted, NotFound, StorageFailed
from clag_server.types.memory import Memory

_log = structlog.get_logger(__name__)

VALUES_AT_ONCE: Final = 16
"""Changes whose values are read together: few, because they must still be true when they are sent."""

PRESENCE_S: Final = 0.25
"""How often, at most, it is looked whether the watched namespace is still there."""

COMPACT_EVERY_S: Final = 60.0
COMPACT_ROWS: Final = 5_000
"""Rows that one compacting transaction takes: other writes wait for it."""


@dataclass(frozen=True, slots=True)
class WatchQuery:
    """What to watch: `after` is the revision to resume after (None: from now), no `kinds` are all of them."""

    namespace: str
    after: int | None = None
    kinds: frozenset[ChangeKind] = frozenset()
    values: bool = False


@dataclass(frozen=True, slots=True)
class WatchedChange:
    """A change, with the memory or cluster as it is now where that was asked for and it is still there."""

    change: Change
    memory: Memory | None = None
    cluster: ClusterView | None = None


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """All changes of one revision, or a checkpoint (no changes): nothing asked for happened up to `through`."""

    changes: tuple[WatchedChange, ...]
    through: int


class WatchStore(Catalog, Log, Protocol):
    """A catalog whose commits can be listened to."""


class Watching:
    """The watches of a server, and the forgetting of old changes. `start` once, `stop` at the end.

    Args:
        store: The catalog, opened by the owner.
        registry: The namespaces at work, which know their clusters.
        config: How the log is kept and told.
        now_ns: The wall clock.
    """

    def __init__(
        self, store: WatchStore, registry: NamespaceRegistry, config: WatchConfig, *, now_ns: Callable[[], int]
    ) -> None:
        self._store = store
        self._registry = registry
        self._config = config
        self._now_ns = now_ns
        self._tail = ChangeTail(store)
        self._compacting: asyncio.Task[None] | None = None

    @property
    def tail(self) -> ChangeTail:
        """The shared reader of the log."""
        return self._tail

    async def start(self) -> None:
        """Begin to follow the log and to compact it."""
        await self._tail.start()
        self._compacting = asyncio.create_task(self._compact_for_ever(), name="change-compaction")

    async def stop(self) -> None:
        """Stop; open watches are ended by their callers."""
        if self._compacting is not None:
            self._compacting.cancel()
            await asyncio.gather(self._compacting, return_exceptions=True)
        await self._tail.stop()

    async def watch(self, query: WatchQuery) -> AsyncGenerator[WatchEvent, None]:
        """Yield what happens; the first event is a checkpoint at the revision that the watch starts after.

        Raises:
            NotFound: there is no such namespace.
            NamespaceDeleted: it is being deleted, or was deleted meanwhile.
            InvalidField: the revision lies in the future.
            LogCompacted: the log no longer reaches back to the revision.
            StorageFailed: the log cannot be read.
        """
        ns = await self._present(query.namespace, None)
        position = await self._start(query)
        yield WatchEvent((), position)
        clock = asyncio.get_running_loop().time
        told_at, checked_at, moved = clock(), clock(), False
        while True:
            due = told_at + self._config.checkpoint_s
            if moved:  # the commit may have been the namespace's end: look soon
                due = min(due, checked_at + PRESENCE_S)
            batch = await self._following(position, due - clock())
            if batch is None or clock() >= checked_at + PRESENCE_S:
                await self._present(query.namespace, ns)
                checked_at, moved = clock(), False
            if batch is not None:
                moved = True
                found = [c for c in batch.changes if c.ns == ns and (not query.kinds or c.kind in query.kinds)]
                async with aclosing(self._events(query, ns, found)) as events:
                    async for event in events:
                        yield event
                        told_at = clock()
                position = batch.through
            if clock() >= told_at + self._config.checkpoint_s:
                yield WatchEvent((), position)
                told_at = clock()

    async def compact(self) -> int:
        """Forget what is old enough and not among the newest; returns how many changes went."""
        before_ns = self._now_ns() - int(self._config.changes_keep_days * 86_400e9)
        gone = 0
        while True:
            some = await self._store.compact_changes(
                before_ns=before_ns, keep=self._config.changes_keep, limit=COMPACT_ROWS
            )
            gone += some
            if some < COMPACT_ROWS:
                return gone

    async def _following(self, position: int, wait_s: float) -> ChangeBatch | None:
        """Return what follows in the log, None when nothing came in time."""
        try:
            async with asyncio.timeout(max(0.0, wait_s)):
                return await self._tail.after(position)
        except TimeoutError:
            return None

    async def _start(self, query: WatchQuery) -> int:
        newest = await self._store.revision()
        if query.after is None:
            return newest
        if query.after > newest:
            raise InvalidField(
                FieldViolation("start_after.token", "is newer than anything this server has written")
            )
        return query.after

    async def _present(self, name: str, ns: int | None) -> int:
        """Return the namespace's number; `ns` is the one that it must have, None for the first time."""
        try:
            namespace = await self._store.get_namespace(name)
        except NotFound:
            if ns is None:
                raise
            raise NamespaceDeleted(name) from None
        if namespace.deleting or (ns is not None and namespace.ns != ns):
            raise NamespaceDeleted(name)
        return namespace.ns

    async def _events(
        self, query: WatchQuery, ns: int, changes: Sequence[Change]
    ) -> AsyncGenerator[WatchEvent, None]:
        revisions = [tuple(group) for _, group in groupby(changes, key=lambda change: change.revision)]
        if not query.values:
            for group in revisions:
                yield WatchEvent(tuple(WatchedChange(change) for change in group), group[0].revision)
            return
        for start in range(0, len(revisions), VALUES_AT_ONCE):
            some = revisions[start : start + VALUES_AT_ONCE]
            values = await self._values(query.namespace, ns, [change for group in some for change in group])
            for group in some:
                yield WatchEvent(tuple(values(change) for change in group), group[0].revision)

    async def _values(self, name: str, ns: int, changes: Sequence[Change]) -> Callable[[Change], WatchedChange]:
        """Read the memories and clusters of changes as they are now."""
        keys = sorted({change.key for change in changes if change.key is not None})
        numbers = sorted({c.cluster for c in changes if c.key is None and c.cluster is not None})
        memories = {m.key: m for m in await self._store.memories(ns, keys)} if keys else {}
        clusters: dict[int, ClusterView] = {}
        if numbers:
            state = (await self._registry.pipeline(name, create=False, check=False)).state
            found = await self._store.clusters(ns, numbers)
            clusters = {view.cluster.cluster: view for view in await views(state.catalog, state, found)}

        def valued(change: Change) -> WatchedChange:
            if change.key is not None:
                return WatchedChange(change, memory=memories.get(change.key))
            return WatchedChange(change, cluster=None if change.cluster is None else clusters.get(change.cluster))

        return valued

    async def _compact_for_ever(self) -> None:
        while True:
            try:
                gone = await self.compact()
                if gone:
                    _log.info("old changes forgotten", changes=gone)
            except StorageFailed as failed:
                _log.warning("changes not compacted", reason=str(failed))
            await asyncio.sleep(COMPACT_EVERY_S)
