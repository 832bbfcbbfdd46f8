"""The pipeline's loops: they sleep when there is nothing to do, and outlive what passes by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.memory.config import IngestConfig, OrganizeConfig, RetrieveConfig
from clag_server.memory.system import MemorySystem
from clag_server.models.scripted import Script, ScriptedEmbedder, ScriptedSlm
from clag_server.models.tokens import WordTokenCounter
from clag_server.types.ingest import Ack, AckLevel, IngestStages
from clag_server.types.memory import MemoryState
from clag_server.types.retrieval import MemoryHits, RetrieveQuery
from tests.memory.builders import new
from tests.memory.index_double import ScanIndex


class ScriptedModels:
    """Scripted embedder and SLM behind one script."""

    def __init__(self, script: Script) -> None:
        self.embedder = ScriptedEmbedder(lambda: script)
        self.slm = ScriptedSlm(lambda: script)
        self.token_counter = WordTokenCounter()


@asynccontextmanager
async def running(path: Path, script: Script, **organize: object) -> AsyncIterator[MemorySystem]:
    catalog = SqliteCatalog(path / "catalog.db")
    system = MemorySystem(
        catalog=catalog,
        index=ScanIndex(catalog),
        models=ScriptedModels(script),
        data_dir=path,
        ingest=IngestConfig(retry_base_s=0.01, max_attempts=2),
        organize=OrganizeConfig(**organize),  # type: ignore[arg-type]
        retrieve=RetrieveConfig(),
    )
    await system.start()
    await system.registry.resumed()
    try:
        yield system
    finally:
        await system.stop()


async def ingest(system: MemorySystem, texts: list[str], *, session: str = "s", stream: str = "st") -> list[Ack]:
    handle = await system.open_ingest("robots", stream, level=AckLevel.ORGANIZED, stages=IngestStages.ALL)
    acks: list[Ack] = []

    async def collect() -> None:
        acks.extend([ack async for ack in handle.acks()])

    reader = asyncio.create_task(collect())
    await handle.append(1, [new(text, f"m{i}", session_id=session) for i, text in enumerate(texts)])
    await handle.finish(len(texts))
    await handle.close()
    await reader
    return acks


async def test_loops_with_nothing_to_do_sleep(tmp_path: Path) -> None:
    async with running(tmp_path, Script()) as system:
        await ingest(system, ["the battery is low", "charging at the dock"])
        loop = asyncio.get_running_loop()
        turns = 0

        def count() -> None:
            nonlocal turns
            turns += 1

        original = loop.call_soon

        def counting(*args: object, **kwargs: object) -> asyncio.Handle:
            count()
            return original(*args, **kwargs)  # type: ignore[arg-type]

        loop.call_soon = counting  # type: ignore[method-assign]
        await asyncio.sleep(0.3)
        assert turns < 200


async def test_every_item_is_told_each_level_that_it_reaches(tmp_path: Path) -> None:
    async with running(tmp_path, Script()) as system:
        acks = await ingest(system, ["the battery is low", "charging at the dock"])
    levels = [outcome.level for ack in acks for outcome in ack.results if outcome.seq == 1]
    assert levels == [AckLevel.DURABLE, AckLevel.SEARCHABLE, AckLevel.ORGANIZED]
    assert acks[-1].acked_through == 2


@pytest.mark.parametrize("misbehaviour", ["unavailable", "short", "nan"])
async def test_memories_wait_out_a_misbehaving_embedder(tmp_path: Path, misbehaviour: str) -> None:
    script = Script(embed=misbehaviour)
    async with running(tmp_path, script) as system:
        waiting = asyncio.create_task(ingest(system, ["the battery is low"]))
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done, "nothing is organized by an embedder that does not answer"
        script.embed = "ok"
        acks = await waiting
        memory, _ = await system.get_memory("robots", "m0", embedding=False, fresh_revision=0)
    assert memory.state is MemoryState.EVOLVED
    assert acks[-1].acked_through == 1


async def test_one_poisonous_memory_is_quarantined_with_its_reason_and_the_others_go_on(tmp_path: Path) -> None:
    class Refusing(ScriptedEmbedder):
        async def embed(self, texts, *, priority, deadline_s=None):  # type: ignore[no-untyped-def]
            from clag_server.models.api import ModelRequestRefusedError

            if any("poison" in text for text in texts):
                raise ModelRequestRefusedError("the text crashes the model")
            return await super().embed(texts, priority=priority, deadline_s=deadline_s)

    async with running(tmp_path, Script()) as system:
        system._models.embedder = Refusing(Script)  # type: ignore[misc]
        await ingest(system, ["a good note", "poison", "another good note"])
        states = {}
        for i in range(3):
            memory, _ = await system.get_memory("robots", f"m{i}", embedding=False, fresh_revision=0)
            states[i] = (memory.state, memory.error)
    assert states[0][0] is MemoryState.EVOLVED
    assert states[2][0] is MemoryState.EVOLVED
    assert states[1][0] is MemoryState.QUARANTINED
    assert "crashes the model" in states[1][1]


async def test_unfinished_work_is_resumed_at_the_next_start(tmp_path: Path) -> None:
    script = Script(embed="unavailable")
    async with running(tmp_path, script) as system:
        handle = await system.open_ingest("robots", "st", level=AckLevel.DURABLE, stages=IngestStages.ALL)
        await handle.append(1, [new("the gripper is cold", "m0")])
        await handle.close()
    async with running(tmp_path, Script()) as system:
        await asyncio.wait_for(_evolved(system, "m0"), 20)


async def _evolved(system: MemorySystem, memory_id: str) -> None:
    while True:
        memory, _ = await system.get_memory("robots", memory_id, embedding=False, fresh_revision=0)
        if memory.state is MemoryState.EVOLVED:
            return
        await asyncio.sleep(0.02)


async def test_what_replaced_a_memory_is_returned_before_it(tmp_path: Path) -> None:
    async with running(tmp_path, Script()) as system:
        handle = await system.open_ingest("robots", "st", level=AckLevel.ORGANIZED, stages=IngestStages.ALL)
        old = new("the charging dock is in bay B3", "old", session_id="a")
        newer = new("moved today: bay B7 from now on", "newer", session_id="b", supersedes=("old",))
        reader = asyncio.create_task(_drain(handle.acks()))
        await handle.append(1, [old, newer])
        await handle.finish(2)
        await handle.close()
        await reader
        hits = await _hits(system, "where is the charging dock")
    assert [hit.memory.memory_id for hit in hits][:2] == ["newer", "old"]
    assert hits[1].conflicts[0].memory_id == "newer"


async def test_a_deleted_memory_is_gone_from_answers_and_counts(tmp_path: Path) -> None:
    async with running(tmp_path, Script()) as system:
        await ingest(system, ["the battery is low", "the battery is full", "a visitor came"])
        await system.edits.delete("robots", "m1", etag="")
        hits = await _hits(system, "battery")
        views, _ = await system.list_clusters("robots", include_archived=True)
    assert "m1" not in [hit.memory.memory_id for hit in hits]
    assert sum(view.cluster.memory_count for view in views) == 2
    assert all("m1" not in view.representative_ids for view in views)


async def _drain(acks: AsyncIterator[Ack]) -> None:
    async for _ in acks:
        pass


async def _hits(system: MemorySystem, question: str):  # type: ignore[no-untyped-def]
    async for stage in system.retrieve(RetrieveQuery(namespace="robots", text=question)):
        if isinstance(stage, MemoryHits):
            found = stage.hits
    return found
