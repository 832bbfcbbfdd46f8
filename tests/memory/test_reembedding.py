"""Another embedder on an old namespace: refused, then embedded again while it serves, never a mixture."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.memory.reembedding import Reembedding
from clag_server.memory.shadow import ShadowFile
from clag_server.memory.system import MemorySystem
from clag_server.models.api import Priority
from clag_server.models.scripted import Script, ScriptedEmbedder
from clag_server.types.errors import EmbedderMismatch, EmbedderNotServed, OperationRunning
from clag_server.types.ingest import AckLevel
from clag_server.types.memory import MemoryState
from clag_server.types.operation import OperationKind, OperationState
from clag_server.types.retrieval import DegradationKind
from clag_server.vectors.index import MilvusIndex
from tests.memory.builders import new
from tests.memory.system import NAMESPACE, degraded, ended, found, get, remember, rewrite, system_on, until

TEXTS = [
    "the red crate stands beside the loading dock",
    "the loading dock opens at seven",
    "grandmother sings opera every sunday",
    "the blue barrel holds rain water",
]
OTHER_DIM = 32


async def vectors_of(system: MemorySystem) -> dict[str, int]:
    """Length of each memory's vector."""
    page, _ = await system.list_memories(
        NAMESPACE, where=None, after=0, limit=100, fresh_revision=0, embeddings=True
    )
    return {m.memory_id: 0 if m.embedding is None else len(m.embedding) for m in page.memories}


async def filled(path: Path) -> None:
    async with system_on(path) as system:
        await remember(system, TEXTS)


async def test_a_namespace_of_another_embedder_is_refused_until_it_is_embedded_again(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with system_on(tmp_path, dim=OTHER_DIM) as system:
        with pytest.raises(EmbedderMismatch, match="clag reindex"):
            await found(system, "crate")
        with pytest.raises(EmbedderNotServed):
            await system.reindexing.begin(NAMESPACE, embedding_model="another")
        operation = await system.reindexing.begin(NAMESPACE, embedding_model="scripted-embedder")
        assert operation.kind is OperationKind.REEMBED
        end = await ended(system, operation)
        assert end.state is OperationState.SUCCEEDED
        assert end.result == {"memories": 4, "embedding_model": "scripted-embedder"}
        hits = await found(system, "red crate at the dock")
        assert hits[0].memory.memory_id == "m0"
        assert hits[0].parts.dense > 0
        assert set((await vectors_of(system)).values()) == {OTHER_DIM}
    async with system_on(tmp_path, dim=OTHER_DIM) as system:
        assert (await found(system, "opera"))[0].memory.memory_id == "m2"


async def test_sums_of_episodes_and_clusters_are_those_of_the_new_vectors(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with system_on(tmp_path, dim=OTHER_DIM) as system:
        await ended(system, await system.reindexing.begin(NAMESPACE, embedding_model="scripted-embedder"))
        pipeline = await system.registry.pipeline(NAMESPACE, create=False)
        state = pipeline.state
        members = await state.catalog.episode_members(state.ns, sorted(state.map.episodes))
        for number, episode in state.map.episodes.items():
            rows = members.vectors[members.episodes == number]
            assert np.allclose(rows.sum(axis=0), episode.vector_sum, atol=1e-5)
            assert len(rows) == episode.memory_count


async def test_while_it_is_embedded_again_a_namespace_answers_by_words_and_takes_memories(tmp_path: Path) -> None:
    await filled(tmp_path)
    script = Script(embed="unavailable")
    async with system_on(tmp_path, dim=OTHER_DIM, script=script) as system:
        operation = await system.reindexing.begin(NAMESPACE, embedding_model="scripted-embedder")
        with pytest.raises(OperationRunning):
            await system.reindexing.begin(NAMESPACE, embedding_model="scripted-embedder")
        ids, done = await degraded(system, "red crate")
        assert ids[0] == "m0"
        assert [d.kind for d in done.degraded] == [DegradationKind.DENSE_UNAVAILABLE]
        created = await system.create_memory(
            NAMESPACE, new("the green box is new", "m9"), request_id="", level=AckLevel.DURABLE
        )
        assert created.memory.state is MemoryState.STORED
        await system.edits.update(NAMESPACE, "m3", rewrite("the yellow barrel holds rain water"))
        await system.edits.delete(NAMESPACE, "m1", etag="")
        script.embed = "ok"
        assert (await ended(system, operation)).state is OperationState.SUCCEEDED
        await until(system, "m9", lambda memory: memory.has_embedding)
        await until(system, "m3", lambda memory: memory.has_embedding)
        assert await vectors_of(system) == dict.fromkeys(("m0", "m2", "m3", "m9"), OTHER_DIM)
        assert (await found(system, "green box"))[0].memory.memory_id == "m9"


async def test_a_restart_resumes_behind_the_vectors_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(tmp_path)
    monkeypatch.setattr("clag_server.memory.reembedding.BATCH", 1)
    monkeypatch.setattr("clag_server.memory.reembedding.SYNC_ROWS", 1)
    script = Script(poison="opera")
    async with system_on(tmp_path, dim=OTHER_DIM, script=script) as system:
        operation = await system.reindexing.begin(NAMESPACE, embedding_model="scripted-embedder")
        async with asyncio.timeout(20):
            while not any("opera" in call.text for call in script.calls):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.005)
    again = Script()
    async with system_on(tmp_path, dim=OTHER_DIM, script=again) as system:
        end = await ended(system, operation)
        if not end.state.ended:
            end = await system.operations.get(operation.operation_id)
        assert end.state is OperationState.SUCCEEDED
        assert not any("red crate" in call.text for call in again.calls)
        assert set((await vectors_of(system)).values()) == {OTHER_DIM}
    assert list((tmp_path / "reembedding").iterdir()) == []


async def test_a_stop_before_the_switch_leaves_the_old_space_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(tmp_path)
    reached = asyncio.Event()

    async def stuck(*_: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(Reembedding, "_change", stuck)
        async with system_on(tmp_path, dim=OTHER_DIM) as system:
            await system.reindexing.begin(NAMESPACE, embedding_model="scripted-embedder")
            await reached.wait()
    async with system_on(tmp_path) as system:  # the old embedder again: the operation fails, the namespace serves
        assert (await found(system, "opera"))[0].memory.memory_id == "m2"
        assert set((await vectors_of(system)).values()) == {64}


async def test_a_memory_that_the_new_model_refuses_is_left_to_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(tmp_path)
    original = Reembedding._embedded

    async def without_opera(self: Reembedding, memories):  # type: ignore[no-untyped-def]
        return await original(self, [m for m in memories if "opera" not in m.text])

    monkeypatch.setattr(Reembedding, "_embedded", without_opera)
    async with system_on(tmp_path, dim=OTHER_DIM) as system:
        await ended(system, await system.reindexing.begin(NAMESPACE, embedding_model="scripted-embedder"))
        await until(system, "m2", lambda memory: memory.has_embedding)
        assert set((await vectors_of(system)).values()) == {OTHER_DIM}
        assert (await found(system, "opera"))[0].memory.memory_id == "m2"


async def test_embedding_again_for_the_same_model_is_a_rebuild(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, TEXTS)
        operation = await system.reindexing.begin(NAMESPACE, embedding_model="scripted-embedder")
        assert operation.kind is OperationKind.REINDEX
        assert (await ended(system, operation)).result["memories"] == 4
        assert (await get(system, "m0")).has_embedding


def test_a_torn_shadow_file_is_cut_back_to_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "x.vectors"
    file = ShadowFile(path, 4)
    file.open(0)
    file.append(np.array([3, 5, 8]), np.eye(3, 4, dtype=np.float32))
    file.close()
    path.write_bytes(path.read_bytes()[:-5])
    again = ShadowFile(path, 4)
    again.open(3)
    assert (again.rows, again.last_key) == (2, 5)
    again.append(np.array([9]), np.ones((1, 4), dtype=np.float32))
    keys = [int(key) for keys, _ in again.batches() for key in keys]
    again.close()
    assert keys == [3, 5, 9]


class Mirrored(ScriptedEmbedder):
    """Another space of the same length: an index of the old one would look right and find the wrong things."""

    @property
    def name(self) -> str:
        return "mirrored-embedder"

    @property
    def fingerprint(self) -> str:
        return "mirrored"

    async def embed(
        self, texts: Sequence[str], *, priority: Priority, deadline_s: float | None = None
    ) -> NDArray[np.float32]:
        return np.roll(await super().embed(texts, priority=priority, deadline_s=deadline_s), 7, axis=1)


async def test_the_index_of_a_real_vector_store_holds_the_new_space_and_no_vector_of_the_old(
    tmp_path: Path,
) -> None:
    def lite(catalog: SqliteCatalog) -> MilvusIndex:
        return MilvusIndex(catalog, tmp_path)

    async with system_on(tmp_path, index=lite) as system:
        await remember(system, TEXTS)
        await (await system.registry.pipeline(NAMESPACE, create=False)).state.index.settle(1)
    async with system_on(tmp_path, index=lite, embedder=Mirrored(Script)) as system:
        operation = await system.reindexing.begin(NAMESPACE, embedding_model="mirrored-embedder")
        assert (await ended(system, operation)).state is OperationState.SUCCEEDED
        state = (await system.registry.pipeline(NAMESPACE, create=False)).state
        vectors = {
            m.memory_id: m
            for m in (await state.catalog.list_memories(1, where=None, after=0, limit=9, embeddings=True)).memories
        }
        probe = vectors["m2"].embedding
        assert probe is not None
        best = (await state.index.search(1, None, probe, limit=1)).hits[0]
        assert best.score == pytest.approx(1.0, abs=1e-3)
        keys = await state.catalog.keys_of_placements(1, [best.placement_id])
        assert keys[best.placement_id] == vectors["m2"].key
