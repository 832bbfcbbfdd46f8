"""A whole memory system in the test's process, on a real catalog, with scripted models and an exact index."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.memory.config import IngestConfig, OrganizeConfig, RetrieveConfig
from clag_server.memory.editing import MemoryChange
from clag_server.memory.system import MemorySystem
from clag_server.models.api import Embedder
from clag_server.models.scripted import Script, ScriptedEmbedder, ScriptedSlm
from clag_server.models.tokens import WordTokenCounter
from clag_server.types.filters import Comparison, Filter, FilterField, Operator
from clag_server.types.ingest import AckLevel
from clag_server.types.memory import Memory, NewMemory
from clag_server.types.operation import Operation
from clag_server.types.retrieval import MemoryHit, MemoryHits, RetrieveDone, RetrieveQuery
from clag_server.vectors.api import VectorIndex
from tests.memory.builders import new
from tests.memory.index_double import ScanIndex

NAMESPACE = "robots"


class ScriptedModels:
    """Scripted embedder (of a length, so that two lengths are two models) and SLM behind one script."""

    def __init__(self, script: Script, *, dim: int = 64, embedder: Embedder | None = None) -> None:
        self.embedder = embedder or ScriptedEmbedder(lambda: script, dim)
        self.slm = ScriptedSlm(lambda: script)
        self.token_counter = WordTokenCounter()


@asynccontextmanager
async def system_on(
    path: Path,
    *,
    script: Script | None = None,
    dim: int = 64,
    now_ns: Callable[[], int] = time.time_ns,
    ingest: IngestConfig | None = None,
    index: Callable[[SqliteCatalog], VectorIndex] = ScanIndex,
    embedder: Embedder | None = None,
    await_resumed: bool = True,
    **organize: object,
) -> AsyncIterator[MemorySystem]:
    """Run a system on the catalog in `path`; by default the namespaces with unfinished work are open at once."""
    catalog = SqliteCatalog(path / "catalog.db")
    system = MemorySystem(
        catalog=catalog,
        index=index(catalog),
        models=ScriptedModels(script or Script(), dim=dim, embedder=embedder),
        data_dir=path,
        ingest=ingest or IngestConfig(retry_base_s=0.01, max_attempts=2),
        organize=OrganizeConfig(**organize),  # type: ignore[arg-type]
        retrieve=RetrieveConfig(),
        now_ns=now_ns,
    )
    await system.start()
    if await_resumed:
        await system.registry.resumed()
    try:
        yield system
    finally:
        await system.stop()


async def remember(
    system: MemorySystem,
    texts: Sequence[str],
    *,
    session: str = "s",
    level: AckLevel = AckLevel.ORGANIZED,
    first: int = 0,
    **fields: object,
) -> None:
    """Store memories m0, m1, ... one after the other."""
    for index, text in enumerate(texts, first):
        item = new(text, f"m{index}", session_id=session, **fields)
        await system.create_memory(NAMESPACE, item, request_id="", level=level)


async def found(system: MemorySystem, text: str) -> list[MemoryHit]:
    """Hits of a question."""
    stages = [stage async for stage in system.retrieve(RetrieveQuery(NAMESPACE, text, max_memories=50))]
    return [hit for stage in stages if isinstance(stage, MemoryHits) for hit in stage.hits]


async def degraded(system: MemorySystem, text: str) -> tuple[list[str], RetrieveDone]:
    """Ids found by a question, and how the answer ended."""
    stages = [stage async for stage in system.retrieve(RetrieveQuery(NAMESPACE, text))]
    done = stages[-1]
    assert isinstance(done, RetrieveDone)
    return [h.memory.memory_id for s in stages if isinstance(s, MemoryHits) for h in s.hits], done


async def get(system: MemorySystem, memory_id: str, *, embedding: bool = False) -> Memory:
    """One memory."""
    return (await system.get_memory(NAMESPACE, memory_id, embedding=embedding, fresh_revision=0))[0]


async def until(system: MemorySystem, memory_id: str, holds: Callable[[Memory], bool]) -> None:
    """Wait until something holds of a memory."""
    async with asyncio.timeout(30):
        while not holds(await get(system, memory_id)):  # noqa: ASYNC110 - the catalog tells nobody
            await asyncio.sleep(0.005)


def rewrite(text: str, **more: object) -> MemoryChange:
    """A change of the text alone."""

    def revise(current: Memory) -> NewMemory:
        return NewMemory(
            text=text,
            memory_id=current.memory_id,
            kind=current.kind,
            speaker=current.speaker,
            session_id=current.session_id,
            tags=current.tags,
            event_time_ns=current.event_time_ns,
        )

    return MemoryChange(fields=frozenset({"text"}), revise=revise, **more)  # type: ignore[arg-type]


def session_is(session: str) -> Filter:
    """A filter on the session."""
    return Comparison(FilterField.SESSION_ID, "", Operator.EQ, session)


async def ended(system: MemorySystem, operation: Operation) -> Operation:
    """Wait for the end of an operation; returns how it ended."""
    last = operation
    async with asyncio.timeout(30):
        async for state in system.operations.watch(operation.operation_id):
            last = state
    return last
