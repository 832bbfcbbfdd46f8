"""The stage STORED -> EMBEDDED: embed a batch, append to episodes, place in clusters; then it is searchable.

A model outage leaves memories STORED and is waited out. A memory that the model refuses is found by embedding the
batch one by one; after enough failed attempts it is quarantined with the reason, and the others go on. A model that
cannot embed even a harmless text is out of order, and that is no memory's fault: it is waited out as an outage is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import structlog

from clag_server.memory.centroids import unit
from clag_server.memory.config import IngestConfig
from clag_server.memory.counters import Outcome
from clag_server.memory.index_text import index_text, lexical_text
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.placing import Placer
from clag_server.memory.progress import KeyProgress, ProgressHub
from clag_server.memory.restoring import restore
from clag_server.models.api import (
    Embedder,
    ModelRequestRefusedError,
    ModelUnavailableError,
    Priority,
    WrongShapeError,
)
from clag_server.types.ingest import AckLevel
from clag_server.types.memory import Matrix, Memory, MemoryState, Vector

_ANY_TIME_NS = 2**62
"""Later than any pause ends."""

_GIVEN_BATCHES = 4
"""Batches that are placed in one transaction where no model has to be waited for: a commit costs as much as one."""

_HARMLESS = "a note"
"""A text that every working embedder takes; tells a poisonous memory from a model that is out of order."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A batch (by keys and revisions) that is embedded while the one before it is placed."""

    stamps: tuple[tuple[int, int], ...]
    task: asyncio.Task[tuple[list[Memory], Matrix]]


class EmbedStage:
    """Embeds and places what is STORED in one namespace."""

    def __init__(
        self,
        state: NamespaceState,
        *,
        embedder: Embedder,
        hub: ProgressHub,
        config: IngestConfig,
        on_placed: Callable[[int], None],
    ) -> None:
        self._state = state
        self._embedder = embedder
        self._hub = hub
        self._config = config
        self._on_placed = on_placed
        self._ahead: _Ahead | None = None
        self._given = False
        """Whether the last batch came with its embeddings and more waits: then larger ones cost nobody time."""
        self.behind = False
        """Whether more than one batch waited in the last round."""
        self.retrying = True
        """Whether memories may wait that are not due yet: after a failed attempt, or from before the start."""

    async def round(self, *, priority: Priority) -> int:
        """Process one batch; returns how many memories were due. Raises ModelUnavailable/Timeout errors."""
        self._state.edited = {}
        try:
            return await self._round(priority)
        finally:
            self._state.edited = None

    async def _round(self, priority: Priority) -> int:
        state = self._state
        batch = self._config.embed_batch * (_GIVEN_BATCHES if self._given else 1)
        due = await self._pending(2 * batch, state.now_ns())
        self.behind = len(due) > batch
        if not due:
            if self.retrying:
                self.retrying = bool(await self._pending(1, _ANY_TIME_NS))
            return 0
        memories, following = due[:batch], due[batch:]
        self._given = self.behind and all(memory.embedding is not None for memory in memories)
        embedded, vectors = await self._embedded(memories, priority)
        if following:
            # The model works on the next batch while this one is placed and committed.
            self._ahead = _Ahead(
                _stamps(following),
                asyncio.create_task(self._embed(following, priority)),
            )
        if embedded:
            restored = await restore(state, embedded, vectors, still=self._still, hub=self._hub)
            if restored:
                rows = [i for i, memory in enumerate(embedded) if memory.key not in restored]
                embedded, vectors = [embedded[i] for i in rows], vectors[rows]
        if embedded:
            lexical = await asyncio.to_thread(lambda: [lexical_text(memory) for memory in embedded])
            async with state.placing() as placer:
                # Those that were rewritten or removed meanwhile are read again in the next round.
                rows = [i for i, memory in enumerate(embedded) if self._still(memory)]
                for start in range(0, len(rows), self._config.embed_batch):
                    some = rows[start : start + self._config.embed_batch]
                    placer.place([embedded[i] for i in some], vectors[some], [lexical[i] for i in some])
                    await asyncio.sleep(0)  # others have their turn in between
            if rows:
                self._after([embedded[i] for i in rows], placer)
        return len(memories)

    def _still(self, memory: Memory) -> bool:
        """Whether a memory is as it was read."""
        edited = self._state.edited
        return edited is None or edited.get(memory.key, 0) <= memory.revision

    async def stop(self) -> None:
        """Give up the batch that is embedded ahead; its memories stay STORED."""
        if self._ahead is not None:
            self._ahead.task.cancel()
            await asyncio.gather(self._ahead.task, return_exceptions=True)
            self._ahead = None

    async def _embedded(self, memories: Sequence[Memory], priority: Priority) -> tuple[list[Memory], Matrix]:
        """Return what was embedded ahead if it is this batch, else embed it now."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.stamps == _stamps(memories):
            return await ahead.task
        if ahead is not None:
            ahead.task.cancel()
            await asyncio.gather(ahead.task, return_exceptions=True)
        return await self._embed(memories, priority)

    async def _pending(self, limit: int, now_ns: int) -> Sequence[Memory]:
        return await self._state.catalog.pending(self._state.ns, MemoryState.STORED, limit=limit, now_ns=now_ns)

    def _after(self, embedded: Sequence[Memory], placer: Placer) -> None:
        state = self._state
        now = asyncio.get_running_loop().time()
        for memory in embedded:
            state.last_seen[memory.session_id] = now
        state.counters.add(Outcome.EMBEDDED, len(embedded))
        self._on_placed(min(memory.key for memory in embedded))
        clusters = placer.placed_clusters()
        self._hub.publish(
            KeyProgress(memory.key, AckLevel.SEARCHABLE, clusters.get(memory.key), MemoryState.EMBEDDED)
            for memory in embedded
        )

    async def _embed(self, memories: Sequence[Memory], priority: Priority) -> tuple[list[Memory], Matrix]:
        """Return the memories that have a vector now, and the vectors (n, dim), in order."""
        given = {m.key: unit(m.embedding) for m in memories if m.embedding is not None}
        asked = [m for m in memories if m.key not in given]
        found: dict[int, Vector] = dict(given)
        if asked:
            texts = await asyncio.to_thread(lambda: [index_text(memory) for memory in asked])
            try:
                rows = await self._embedder.embed(texts, priority=priority)
                found.update({m.key: row for m, row in zip(asked, rows, strict=True)})
            except (ModelRequestRefusedError, WrongShapeError) as error:
                _log.warning("embed batch failed", namespace=state_name(self._state), error=str(error))
                found.update(await self._one_by_one(asked, texts, priority))
        ready = [m for m in memories if m.key in found]
        matrix = np.stack([found[m.key] for m in ready]) if ready else np.zeros((0, self._state.dim), np.float32)
        return ready, matrix

    async def _one_by_one(
        self, memories: Sequence[Memory], texts: Sequence[str], priority: Priority
    ) -> dict[int, Vector]:
        found: dict[int, Vector] = {}
        works = False
        for memory, text in zip(memories, texts, strict=True):
            try:
                rows = await self._embedder.embed([text], priority=priority)
                found[memory.key] = rows[0]
                works = True
            except (ModelRequestRefusedError, WrongShapeError) as error:
                if not works:
                    await self._ensure_works(priority)
                    works = True
                await self._fail(memory, str(error))
        return found

    async def _ensure_works(self, priority: Priority) -> None:
        """Raise ModelUnavailableError where the model embeds nothing at all."""
        try:
            await self._embedder.embed([_HARMLESS], priority=priority)
        except (ModelRequestRefusedError, WrongShapeError) as error:
            raise ModelUnavailableError(f"the embedder is out of order: {error}") from error

    async def _fail(self, memory: Memory, error: str) -> None:
        state = self._state
        self.retrying = True
        state.counters.add(Outcome.FAILED_ATTEMPTS)
        pause_ns = int(self._config.retry_base_s * 1e9)
        for failed in await state.catalog.record_failure(
            state.ns,
            [memory.key],
            error=error,
            max_attempts=self._config.max_attempts,
            not_before_ns=state.now_ns() + pause_ns,
        ):
            if failed.quarantined:
                _log.warning("memory quarantined", namespace=state_name(state), memory_id=memory.memory_id)
                state.counters.add(Outcome.QUARANTINED)
                self._hub.publish(
                    [KeyProgress(failed.key, AckLevel.ORGANIZED, None, MemoryState.QUARANTINED, error)]
                )


def _stamps(memories: Sequence[Memory]) -> tuple[tuple[int, int], ...]:
    return tuple((memory.key, memory.revision) for memory in memories)


def state_name(state: NamespaceState) -> str:
    """Return the namespace's name for logs."""
    return state.namespace.name
