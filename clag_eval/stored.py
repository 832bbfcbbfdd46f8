"""A pool inside a server: streamed in, organized, and read back through the contract."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from clag.v1 import admin_service_pb2 as admin_pb
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient, NewMemory
from numpy.typing import NDArray

from clag_eval.data import Memory, Pool
from clag_eval.tokens import TokenEstimate

__all__ = ["PAGE", "EvaluationError", "StoredPool", "namespace_of", "store"]

PAGE: Final = 240
"""Memories that one question scores at once (see `scores`); a retrieval returns at most 256."""
PAGE_ATTRIBUTE: Final = "eval_page"

_POLL_S: Final = 0.1
_SETTLED_S: Final = {False: 0.4, True: 3.0}
"""Without any work for so long, a pool counts as organized; the SLM's calls are not all counted while they run."""
_STUCK_S: Final = 900.0
_LEARN_TOKENS: Final = 2_048


class EvaluationError(Exception):
    """The evaluation cannot go on; the message says why."""


@dataclass(slots=True)
class StoredPool:
    """A pool that a server has organized.

    Attributes:
        pool: The memories and questions.
        client: The server.
        namespace: Where they are.
        slm_use: Whether the SLM takes part in retrieval.
        seconds: From the first item sent until nothing was left to do.
        slm_calls: Calls of the language model for that.
        slm_tokens: Tokens read and written in them.
        clusters: Active clusters, by id.
        cluster_of: Cluster of each memory, by its id.
        vectors: Unit embeddings (n, dim) in the order of the pool's memories.
        estimate: What texts cost in tokens.
        by_id: The memories by id.
        cosines: Cosine of each memory (n,) and the questions asked so far (see `table`).
    """

    pool: Pool
    client: AsyncClient
    namespace: str
    slm_use: pb.SlmUse.ValueType
    seconds: float = 0.0
    slm_calls: int = 0
    slm_tokens: int = 0
    clusters: Mapping[str, types_pb2.Cluster] = field(default_factory=dict)
    cluster_of: Mapping[str, str] = field(default_factory=dict)
    vectors: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))
    estimate: TokenEstimate = field(default_factory=TokenEstimate)
    by_id: Mapping[str, Memory] = field(default_factory=dict)
    cosines: dict[str, NDArray[np.float64]] = field(default_factory=dict)


def namespace_of(data: str, pool: str) -> str:
    """Return a name of a namespace for a pool of the data."""
    name = re.sub(r"[^a-z0-9]+", "-", f"eval-{data}-{pool}".lower()).strip("-")
    return name[:63].rstrip("-")


async def store(
    client: AsyncClient,
    namespace: str,
    pool: Pool,
    *,
    slm_use: pb.SlmUse.ValueType,
    vectors: NDArray[np.float32] | None = None,
) -> StoredPool:
    """Stream a pool in and wait until it is organized.

    What is there from an earlier, broken run is not stored again: ids are the same. A namespace that holds
    something else is refused, for it would be found too.

    Args:
        client: The server.
        namespace: Where the memories go.
        pool: The memories.
        slm_use: Whether the SLM takes part in retrieval.
        vectors: Embeddings (n, dim) that the same embedder made before; None lets the server make them.

    Raises:
        EvaluationError: A memory was refused, or the namespace holds other memories.
    """
    stored = StoredPool(pool, client, namespace, slm_use, by_id={one.id: one for one in pool.memories})
    before = (await client.server_info()).slm.work
    started = time.perf_counter()
    items = [_input(memory, row, vectors) for row, memory in enumerate(pool.memories)]
    async with client.ingest(namespace, items, ack_level=pb.ACK_LEVEL_ORGANIZED) as ingestion:
        finished = await ingestion.wait()
    if finished.rejected or finished.quarantined:
        wrong = finished.rejected + finished.quarantined
        raise EvaluationError(f"{wrong} of {len(items)} memories of {pool.name} were refused by the server")
    stored.seconds = await _settled(client, namespace, slm=slm_use != pb.SLM_USE_NEVER) - started
    work = (await client.server_info()).slm.work
    stored.slm_calls = work.calls - before.calls
    stored.slm_tokens = work.tokens_in + work.tokens_out - before.tokens_in - before.tokens_out
    await _read_back(stored)
    return stored


def _input(memory: Memory, row: int, vectors: NDArray[np.float32] | None) -> NewMemory:
    return NewMemory(
        memory.text,
        memory_id=memory.id,
        speaker=memory.speaker,
        session_id=memory.session,
        event_time=memory.time,
        attributes={PAGE_ATTRIBUTE: row // PAGE},
        embedding=() if vectors is None else vectors[row].tolist(),
    )


async def _settled(client: AsyncClient, namespace: str, *, slm: bool) -> float:
    """Wait until nothing waits and nothing happens; returns when the last thing did.

    Raises:
        EvaluationError: Something waits although nothing happens any more.
    """
    last: object = None
    changed = time.perf_counter()
    while True:
        stats, info = await asyncio.gather(client.stats(namespace), client.server_info())
        waiting = {one.stage: one.pending for one in stats.backlog if one.pending}
        now = (stats.revision.token, stats.outcomes.slm_requests, info.slm.work.calls, tuple(waiting.items()))
        moment = time.perf_counter()
        if now != last:
            last, changed = now, moment
        elif not waiting and not info.slm.work.waiting and moment - changed > _SETTLED_S[slm]:
            return changed
        if moment - changed > _STUCK_S:
            stages = ", ".join(admin_pb.Stage.Name(stage) for stage in waiting) or "the language model"
            raise EvaluationError(f"{namespace} is not organized: work waits for {stages}, and nothing happens")
        await asyncio.sleep(_POLL_S)


async def _read_back(stored: StoredPool) -> None:
    """Read what the server made of the pool."""
    rows = {memory.id: row for row, memory in enumerate(stored.pool.memories)}
    cluster_of: dict[str, str] = {}
    found: dict[int, Sequence[float]] = {}
    async for memory in stored.client.list_memories(stored.namespace, page_size=500, include_embeddings=True):
        if memory.memory_id not in rows:
            strange = f"the namespace {stored.namespace} holds memories that are not of {stored.pool.name}"
            raise EvaluationError(strange)
        cluster_of[memory.memory_id] = memory.cluster_id
        found[rows[memory.memory_id]] = memory.embedding
    if len(found) != len(rows):
        raise EvaluationError(f"{len(rows) - len(found)} memories of {stored.pool.name} are not there")
    stored.vectors = np.array([found[row] for row in range(len(rows))], dtype=np.float32)
    stored.cluster_of = cluster_of
    stored.clusters = {one.cluster_id: one async for one in stored.client.list_clusters(stored.namespace)}
    if stored.pool.questions:
        sample = await stored.client.get_context(
            stored.namespace,
            stored.pool.questions[0].text,
            mode=pb.RETRIEVAL_MODE_GLOBAL,
            slm_use=pb.SLM_USE_NEVER,
            max_memories=100,
            context_tokens=_LEARN_TOKENS,
        )
        stored.estimate.learn(sample.context.text, sample.context.tokens)
