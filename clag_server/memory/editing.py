"""Updates and deletes that clients ask for: the catalog's transaction, then what mirrors the catalog.

Each edit runs to its end once it has begun, whatever becomes of the caller: a mirror that missed the second half
would part from the catalog. Deletes of many go in batches, each its own transaction under the namespace's lock,
with pauses in between, so that questions are answered and memories placed meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from clag_server.catalog.api import Catalog
from clag_server.catalog.api_clusters import EditAnswer
from clag_server.catalog.api_edits import DeletedBatch, Updated
from clag_server.memory.episode_cache import EpisodeCache
from clag_server.memory.index_text import lexical_text_of
from clag_server.memory.pipeline import NamespacePipeline
from clag_server.memory.progress import ProgressHub
from clag_server.memory.registry import NamespaceRegistry
from clag_server.types.errors import EtagMismatch, FieldViolation, InvalidField
from clag_server.types.filters import Filter
from clag_server.types.ingest import AckLevel
from clag_server.types.memory import Memory, NewMemory

__all__ = ["Deleted", "Editor", "MemoryChange", "Rewritten"]

T = TypeVar("T")

BATCH: Final = 256
"""Memories deleted in one transaction: the namespace's lock is held for some tens of milliseconds."""

_PAUSE_SHARE: Final = 0.5
"""Pause after a batch, as a share of the time that the batch took."""

_MAX_PAUSE_S: Final = 0.05
_TRIES: Final = 8
"""Attempts at an update without an etag while others change the memory too."""

_WORDS: Final = frozenset({"text", "speaker", "event_time_ns", "embedding", "session_id"})
"""Fields that decide where a memory is placed."""

_LEXICAL: Final = frozenset({"task", "tags"})
"""Fields that are searched by words but do not decide a place."""


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """What a client changes on one memory.

    Attributes:
        fields: Names of `NewMemory` that change.
        revise: Gives the memory as it will be, from the memory as it is. Raises InvalidField.
        etag: Must be the current one; "" for any.
        request_id: Makes retries safe for 24 hours; "" for none.
        digest: Hash of the request, to tell a retry from another request under the same id.
    """

    fields: frozenset[str]
    revise: Callable[[Memory], NewMemory]
    etag: str = ""
    request_id: str = ""
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A memory after its update, and the revision of the write."""

    memory: Memory
    revision: int


@dataclass(frozen=True, slots=True)
class Deleted:
    """What a delete by filter did: matched when it began, deleted, and whether all that matched are gone."""

    matched: int
    deleted: int
    complete: bool
    revision: int


class Editor:
    """Changes and removes memories.

    Args:
        registry: The namespaces at work.
        catalog: The system of record.
        hub: Where progress is told.
        cache: Vectors of recent episodes.
        now_ns: The wall clock.
    """

    def __init__(
        self,
        registry: NamespaceRegistry,
        *,
        catalog: Catalog,
        hub: ProgressHub,
        cache: EpisodeCache,
        now_ns: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._catalog = catalog
        self._hub = hub
        self._cache = cache
        self._now_ns = now_ns
        self._running: set[asyncio.Task[Any]] = set()

    async def stop(self) -> None:
        """Wait for edits whose callers went away."""
        await asyncio.gather(*self._running, return_exceptions=True)

    async def update(self, namespace: str, memory_id: str, change: MemoryChange) -> Rewritten:
        """Change a memory; one whose words changed is searchable by the new ones, and by no old one, on return.

        While the namespace is embedded again for another model, words are taken over and found by meaning later.
        Raises NotFound, EtagMismatch, InvalidField, RequestIdReused, EmbedderMismatch, NamespaceDeleted.
        """
        words = bool(change.fields & _WORDS)
        pipeline = await self._registry.pipeline(namespace, create=False, check=words, again=True)
        with pipeline.hurry():
            updated = await self._to_the_end(self._update(pipeline, memory_id, change))
            if updated.replaced and pipeline.running:
                await pipeline.reached(updated.memory.key, AckLevel.SEARCHABLE)
        memory = await self._catalog.memory(pipeline.state.ns, memory_id)
        return Rewritten(memory, updated.revision)

    async def delete(self, namespace: str, memory_id: str, *, etag: str) -> int:
        """Delete a memory everywhere; returns the revision. Raises NotFound, EtagMismatch, NamespaceDeleted."""
        pipeline = await self._registry.pipeline(namespace, create=False, check=False)
        return await self._to_the_end(self._delete(pipeline, memory_id, etag))

    async def delete_matching(self, namespace: str, where: Filter, *, dry_run: bool, within_s: float) -> Deleted:
        """Delete all memories that match, in any state.

        Args:
            namespace: The namespace.
            where: Which; memories that come to match after the beginning are left.
            dry_run: Only counts.
            within_s: Ends before so many seconds have passed, with what is done by then.

        Raises:
            NotFound: there is no such namespace.
        """
        until = asyncio.get_running_loop().time() + within_s
        pipeline = await self._registry.pipeline(namespace, create=False, check=False)
        ns = pipeline.state.ns
        matched, through = await self._catalog.count_matching(ns, where)
        revision = await self._catalog.revision()
        if dry_run or not matched:
            return Deleted(matched, 0, complete=not matched, revision=revision)

        deleted, after = 0, 0

        async def batch() -> DeletedBatch:
            return await self._catalog.delete_matching(
                ns, where, through_key=through, limit=BATCH, now_ns=self._now_ns(), after_key=after
            )

        while True:
            done = await self._remove(pipeline, batch, until=until)
            if done is None:
                return Deleted(matched, deleted, complete=False, revision=revision)
            deleted += len(done.keys)
            revision = max(revision, done.revision)
            if not done.keys:
                return Deleted(matched, deleted, complete=True, revision=revision)
            after = max(done.keys)

    async def delete_expired(self, pipeline: NamespacePipeline) -> int:
        """Delete all memories of a namespace whose expire time has come; returns how many."""

        async def batch() -> DeletedBatch:
            return await self._catalog.delete_expired(pipeline.state.ns, now_ns=self._now_ns(), limit=BATCH)

        deleted = 0
        while True:
            done = await self._remove(pipeline, batch)
            count = 0 if done is None else len(done.keys)
            deleted += count
            if count < BATCH:
                return deleted

    async def _remove(
        self,
        pipeline: NamespacePipeline,
        batch: Callable[[], Coroutine[Any, Any, DeletedBatch]],
        *,
        until: float | None = None,
    ) -> DeletedBatch | None:
        """Delete one batch and pause; None when there was no time for it any more.

        Time is up when a batch that takes twice as long as the last one would end too late.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        if until is not None and began + 2 * pipeline.state.batch_s >= until:
            return None

        async def whole() -> DeletedBatch:
            async with pipeline.state.editing():
                locked = loop.time()
                done = await batch()
                await self._settle(pipeline, done.keys, done.revision, done.episodes, done.clusters)
                pipeline.state.batch_s = loop.time() - locked
            pipeline.gone(done.keys)
            return done

        done = await self._to_the_end(whole())
        await asyncio.sleep(min(_MAX_PAUSE_S, _PAUSE_SHARE * (loop.time() - began)))
        return done

    async def _delete(self, pipeline: NamespacePipeline, memory_id: str, etag: str) -> int:
        state = pipeline.state
        async with state.editing():
            memory = await self._catalog.memory(state.ns, memory_id)
            revision = await self._catalog.delete(state.ns, memory_id, etag=etag, now_ns=self._now_ns())
            await self._settle(pipeline, [memory.key], revision, _numbers(memory.episode), _numbers(memory.cluster))
        pipeline.gone([memory.key])
        return revision

    async def _update(self, pipeline: NamespacePipeline, memory_id: str, change: MemoryChange) -> Updated:
        state = pipeline.state
        for _ in range(_TRIES):
            async with state.editing():
                known = await self._answered(state.ns, memory_id, change)
                if known is not None:
                    return known
                try:
                    updated = await self._write(state.ns, memory_id, change, dim=state.dim)
                except EtagMismatch:
                    if change.etag:
                        raise
                    continue
                await self._settle(
                    pipeline,
                    [updated.memory.key],
                    updated.revision,
                    _numbers(updated.episode),
                    _numbers(updated.cluster),
                )
                if updated.replaced:
                    self._hub.restart(updated.memory.key)
            pipeline.edited()
            return updated
        raise EtagMismatch(str((await self._catalog.memory(state.ns, memory_id)).revision))

    async def _write(self, ns: int, memory_id: str, change: MemoryChange, *, dim: int) -> Updated:
        current = await self._catalog.memory(ns, memory_id)
        if change.etag and change.etag != str(current.revision):
            raise EtagMismatch(str(current.revision))
        after = change.revise(current)
        if "embedding" in change.fields and after.embedding is not None and len(after.embedding) != dim:
            wrong = f"has {len(after.embedding)} numbers, this namespace takes {dim}"
            raise InvalidField(FieldViolation("memory.embedding", wrong))
        lexical = lexical_text_of(after, event_time_ns=after.event_time_ns or current.event_time_ns)
        return await self._catalog.update(
            ns,
            memory_id,
            after,
            fields=change.fields,
            lexical=lexical if change.fields & _LEXICAL else None,
            etag=str(current.revision),
            now_ns=self._now_ns(),
            answer=(lambda updated: _answer(change, updated)) if change.request_id else None,
        )

    async def _answered(self, ns: int, memory_id: str, change: MemoryChange) -> Updated | None:
        """Return what the request did before, None when it is new. Raises RequestIdReused."""
        if not change.request_id:
            return None
        text = await self._catalog.edit_answer(ns, change.request_id, change.digest)
        if text is None:
            return None
        answer = json.loads(text)
        memory = await self._catalog.memory(ns, memory_id)
        # Whoever retries wants what the first try wanted: to wait until the new words are found.
        waiting = answer["replaced"] and not memory.has_embedding and not memory.error
        return Updated(memory, answer["revision"], waiting, memory.episode, memory.cluster)

    async def _settle(
        self,
        pipeline: NamespacePipeline,
        keys: Sequence[int],
        revision: int,
        episodes: Collection[int],
        clusters: Collection[int],
    ) -> None:
        """Bring what mirrors the catalog up to date after an edit; the lock must be held."""
        state = pipeline.state
        if state.edited is not None:
            state.edited.update(dict.fromkeys(keys, revision))
        self._cache.forget(state.ns, episodes)
        await state.mirror(episodes=episodes, clusters=clusters)
        await state.drop_empty(clusters)

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Run an edit in a task of its own, which a cancelled caller leaves running."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)


def _answer(change: MemoryChange, updated: Updated) -> EditAnswer:
    """Return what a retry of the change is to be told."""
    text = json.dumps({"revision": updated.revision, "replaced": updated.replaced})
    return EditAnswer(change.request_id, change.digest, text)


def _numbers(one: int | None) -> frozenset[int]:
    return frozenset() if one is None else frozenset({one})
