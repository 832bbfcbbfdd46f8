"""Memories that were imported without an embedding go back, once they are embedded, to where they were."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from clag_server.memory.finished import finished
from clag_server.memory.index_text import lexical_text
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.progress import KeyProgress, ProgressHub
from clag_server.types.ingest import AckLevel
from clag_server.types.memory import Matrix, Memory, MemoryState
from clag_server.types.transfer import EmbeddedMemory


async def restore(
    state: NamespaceState,
    memories: Sequence[Memory],
    vectors: Matrix,
    *,
    still: Callable[[Memory], bool],
    hub: ProgressHub,
) -> frozenset[int]:
    """Place those memories for which an import reserved a place; returns their keys.

    Args:
        state: The namespace; its lock is not held.
        memories: Embedded memories without a place.
        vectors: Shape (n, dim), unit rows.
        still: Whether a memory is as it was read; asked under the lock.
        hub: Where progress is told.
    """
    reserved = await state.catalog.reserved_places(state.ns, [memory.key for memory in memories])
    if not reserved:
        return frozenset()
    mine = [(memory, vectors[row]) for row, memory in enumerate(memories) if memory.key in reserved]
    lexical = await asyncio.to_thread(lambda: [lexical_text(memory) for memory, _ in mine])
    async with state.editing():
        embedded = [
            EmbeddedMemory(memory.key, vector, tokens)
            for (memory, vector), tokens in zip(mine, lexical, strict=True)
            if still(memory)
        ]
        result = await finished(state.catalog.place_reserved(state.ns, embedded, now_ns=state.now_ns()))
        await state.mirror(episodes=result.episodes, clusters=result.clusters)
    placed = frozenset(item.key for item in result.items if item.key is not None)
    hub.publish(
        KeyProgress(key, AckLevel.ORGANIZED, reserved[key].cluster, MemoryState.EVOLVED) for key in sorted(placed)
    )
    return placed
