"""A question whose time is short is answered with less, and the answer says what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from clag_server.catalog.api import IndexFeed
from clag_server.memory.config import RetrieveConfig
from clag_server.memory.episode_cache import EpisodeCache
from clag_server.memory.retrieving import Retrieval, Tools
from clag_server.memory.system import MemorySystem
from clag_server.memory.time_left import Step
from clag_server.models.api import Embedder, Priority
from clag_server.models.scripted import Script, ScriptedEmbedder
from clag_server.models.tokens import WordTokenCounter
from clag_server.types.memory import Vector
from clag_server.types.retrieval import (
    AssembledContext,
    DegradationKind,
    MemoryHits,
    RetrieveDone,
    RetrieveMode,
    RetrieveQuery,
    RetrieveStage,
    SlmUse,
)
from clag_server.vectors.api import VectorHits
from tests.memory.clock import Clock
from tests.memory.index_double import ScanIndex
from tests.memory.system import NAMESPACE, remember, system_on

NOTES = ("The dock is in bay B3.", "The red pallet is in aisle seven.", "Anna cannot eat peanuts.")
SHORT_S = 0.1
"""Less than anything that hangs, more than ranking three memories."""


class HangingIndex(ScanIndex):
    """An index whose searches hang when it is told to."""

    def __init__(self, feed: IndexFeed) -> None:
        super().__init__(feed)
        self.hangs = False
        self.cancelled = 0

    async def search(self, ns: int, clusters: Sequence[int] | None, vector: Vector, *, limit: int) -> VectorHits:
        if self.hangs:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return await super().search(ns, clusters, vector, limit=limit)


class SlowEmbedder:
    """An embedder that takes time on a test's clock."""

    def __init__(self, inner: Embedder, clock: Clock, takes_s: float) -> None:
        self._inner = inner
        self._clock = clock
        self._takes_s = takes_s

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def dim(self) -> int:
        return self._inner.dim

    @property
    def fingerprint(self) -> str:
        return self._inner.fingerprint

    async def embed(
        self, texts: Sequence[str], *, priority: Priority, deadline_s: float | None = None
    ) -> NDArray[np.float32]:
        self._clock.passes(self._takes_s)
        return await self._inner.embed(texts, priority=priority, deadline_s=deadline_s)


async def asked(system: MemorySystem, query: RetrieveQuery) -> list[RetrieveStage]:
    return [stage async for stage in system.retrieve(query)]


def told(stages: Sequence[RetrieveStage]) -> tuple[list[str], list[DegradationKind]]:
    """The texts that were found, and what was left out."""
    done = stages[-1]
    assert isinstance(done, RetrieveDone)
    texts = [hit.memory.text for stage in stages if isinstance(stage, MemoryHits) for hit in stage.hits]
    return texts, [one.kind for one in done.degraded]


async def test_while_the_embedder_hangs_words_answer_in_time(tmp_path: Path) -> None:
    script = Script()
    async with system_on(tmp_path, script=script) as system:
        await remember(system, NOTES)
        script.embed = "hang"
        texts, left_out = told(
            await asked(system, RetrieveQuery(NAMESPACE, "Where is the dock?", deadline_s=SHORT_S))
        )
    assert texts[0] == NOTES[0]
    assert DegradationKind.DENSE_UNAVAILABLE in left_out


async def test_while_the_index_hangs_what_the_episodes_hold_is_answered_in_time(tmp_path: Path) -> None:
    made: list[HangingIndex] = []

    def index(feed: IndexFeed) -> HangingIndex:
        made.append(HangingIndex(feed))
        return made[-1]

    async with system_on(tmp_path, index=index) as system:
        await remember(system, NOTES)
        made[0].hangs = True
        query = RetrieveQuery(NAMESPACE, "Where is the dock?", deadline_s=SHORT_S)
        texts, left_out = told(await asked(system, query))
        assert texts[0] == NOTES[0]
        assert left_out == [DegradationKind.NET_SKIPPED]
        whole = RetrieveQuery(NAMESPACE, "Where is the dock?", mode=RetrieveMode.GLOBAL, deadline_s=SHORT_S)
        texts, left_out = told(await asked(system, whole))
        assert texts == [NOTES[0]]
        assert left_out == [DegradationKind.NET_SKIPPED]
        await asyncio.sleep(0)  # the search that was not waited for hears that it is cancelled
        assert made[0].cancelled == 2


async def test_while_the_language_model_hangs_the_question_is_answered_without_it(tmp_path: Path) -> None:
    script = Script()
    async with system_on(tmp_path, script=script, cluster_cosine=0.9) as system:
        for number, note in enumerate(NOTES):
            await remember(system, [note], session=f"s{number}", first=number)
        script.choose = "hang"
        query = RetrieveQuery(NAMESPACE, "Where is the dock?", slm_use=SlmUse.ALWAYS, deadline_s=0.8)
        texts, left_out = told(await asked(system, query))
    assert texts[0] == NOTES[0]
    assert DegradationKind.SLM_SKIPPED in left_out or DegradationKind.SLM_UNAVAILABLE in left_out


async def test_a_question_without_any_time_is_still_answered_from_the_episodes(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, NOTES)
        query = RetrieveQuery(NAMESPACE, "Where is the dock?", context_tokens=100, deadline_s=0.0)
        stages = await asked(system, query)
    texts, left_out = told(stages)
    assert texts[0] == NOTES[0]
    assert left_out == [DegradationKind.NET_SKIPPED, DegradationKind.CONTEXT_SKIPPED]
    assert not any(isinstance(stage, AssembledContext) for stage in stages)


async def test_time_that_the_embedder_took_is_missing_for_the_net(tmp_path: Path) -> None:
    clock = Clock()
    async with system_on(tmp_path) as system:
        await remember(system, NOTES)
        state = (await system.registry.pipeline(NAMESPACE, create=False)).state
        for _ in range(100):
            state.durations.took(Step.NET, 0.2)
            state.durations.took(Step.RANK, 0.1)
        kinds = {}
        for takes_s in (0.1, 0.9):
            embedder = SlowEmbedder(ScriptedEmbedder(Script), clock, takes_s)
            tools = Tools(
                cast("Embedder", embedder),
                WordTokenCounter(),
                EpisodeCache(state.catalog, max_bytes=1 << 20),
                RetrieveConfig(),
                clock=clock,
            )
            query = RetrieveQuery(NAMESPACE, "Where is the dock?", deadline_s=1.0)
            stages = [stage async for stage in Retrieval(query, state, tools, waited_s=0.0).stages()]
            kinds[takes_s] = told(stages)[1]
    assert kinds == {0.1: [], 0.9: [DegradationKind.NET_SKIPPED]}


async def test_with_time_enough_or_no_deadline_nothing_is_left_out(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, NOTES)
        for deadline_s in (None, 60.0):
            query = RetrieveQuery(NAMESPACE, "Where is the dock?", context_tokens=100, deadline_s=deadline_s)
            assert told(await asked(system, query))[1] == []
