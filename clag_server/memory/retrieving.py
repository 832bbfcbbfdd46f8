"""Two-stage retrieval of one query (design, section 6): pick episodes and clusters, then rank inside, plus a net.

The query runs through `Retrieval` step by step; each finished stage is yielded at once. A missing part (embedder
away, index rebuilding) degrades the answer and is named in it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from clag_server.catalog.api import EpisodeMembers, LexicalHits
from clag_server.memory.archiving import hidden_clusters
from clag_server.memory.candidates import NearClusters, near_clusters
from clag_server.memory.centroids import unit
from clag_server.memory.choosing import ClusterChooser, rank_bonus
from clag_server.memory.config import RetrieveConfig
from clag_server.memory.context import assemble
from clag_server.memory.episode_cache import EpisodeCache, concatenate
from clag_server.memory.hits import hydrate
from clag_server.memory.lexical import tokens
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.order import weighed_by_order
from clag_server.memory.permitted import Permitted
from clag_server.memory.ranking import rank
from clag_server.memory.safety_net import SafetyNet
from clag_server.memory.selecting import EpisodeScores, explain_clusters, favour, pick_episodes
from clag_server.memory.selecting_scope import in_question, score_candidates, search_space
from clag_server.memory.speaking import speaker_bonus
from clag_server.memory.time_left import OutOfTime, Step, TimeLeft
from clag_server.models.api import (
    Embedder,
    ModelError,
    ModelUnavailableError,
    Priority,
    SlmEngine,
    TokenCounter,
)
from clag_server.types.errors import FieldViolation, InvalidField
from clag_server.types.memory import Vector
from clag_server.types.retrieval import (
    AssembledContext,
    ClusterSelection,
    Degradation,
    DegradationKind,
    MemoryHit,
    MemoryHits,
    RetrieveDone,
    RetrieveMode,
    RetrieveQuery,
    RetrieveStage,
)
from clag_server.vectors.api import VectorHits

_FILTER_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class Tools:
    """What a retrieval works with; `by_words` says why there is no searching by meaning, "" where there is."""

    embedder: Embedder
    counter: TokenCounter
    cache: EpisodeCache
    config: RetrieveConfig
    by_words: str = ""
    slm: SlmEngine | None = None
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class _Asked:
    """A query that was embedded and looked up: what both stages work on. Times are those of `time.perf_counter`."""

    vector: Vector
    hits: LexicalHits
    permitted: Permitted
    near: NearClusters | None
    order: float
    started: float
    ready: float

    def scored(self, config: RetrieveConfig) -> EpisodeScores:
        """Score the episodes as they are now."""
        return score_candidates(self.vector, self.hits, self.near, self.permitted, config)

    def words(self, members: EpisodeMembers) -> NDArray[np.float64]:
        """Return the BM25 of each member (n,), zero where no word matches."""
        found = {int(key): float(score) for key, score in zip(self.hits.keys, self.hits.scores, strict=True)}
        return np.array([found.get(int(key), 0.0) for key in members.keys], dtype=np.float64)


class Retrieval:
    """One query on its way. Use once: iterate over `stages()`."""

    def __init__(self, query: RetrieveQuery, state: NamespaceState, tools: Tools, *, waited_s: float) -> None:
        self._query = query
        self._state = state
        self._tools = tools
        self._config = tools.config
        self._waited_s = waited_s
        self._degraded: list[Degradation] = []
        self._time = TimeLeft(
            None if query.deadline_s is None else query.deadline_s - waited_s,
            state.durations,
            context=query.context_tokens > 0,
            clock=tools.clock,
        )
        """Steps that an answer can do without ask it before they begin; see `TimeLeft.spend`."""
        self.returned: tuple[int, ...] = ()
        """Keys of the hits, once they were yielded."""

    async def stages(self) -> AsyncIterator[RetrieveStage]:
        """Yield ClusterSelection, MemoryHits, AssembledContext (when a budget was given), RetrieveDone."""
        query, state = self._query, self._state
        started = time.perf_counter()
        # Words are looked up beside the embedding and the net's search, which need one another but not the words.
        looking = asyncio.ensure_future(
            asyncio.gather(self._words(), state.catalog.revision(), state.order.share(state.map.memory_count))
        )
        looking.add_done_callback(_seen)
        searching: asyncio.Task[VectorHits | None] | None = None
        try:
            vector = await self._vector()
            permitted = await self._permitted(vector)
            net = SafetyNet(state, permitted, self._config, everywhere=query.mode is RetrieveMode.GLOBAL)
            near = near_clusters(state.map, vector, self._config)
            searching = asyncio.create_task(net.search(vector, near))
            hits, revision, order = await looking
            asked = _Asked(vector, hits, permitted, near, order, started, time.perf_counter())
            async for stage in self._ranked(asked, net, searching, revision):
                yield stage
        finally:
            looking.cancel()
            if searching is not None:
                searching.cancel()

    async def _ranked(
        self, asked: _Asked, net: SafetyNet, searching: asyncio.Task[VectorHits | None], revision: int
    ) -> AsyncIterator[RetrieveStage]:
        """Yield the stages that follow from the query's vector and words."""
        query, state, config = self._query, self._state, self._config
        cluster_map = asked.permitted.cluster_map
        two_stage = query.mode is RetrieveMode.TWO_STAGE
        before_slm = time.perf_counter()
        scored = asked.scored(config)
        choice = await ClusterChooser(self._tools.slm, state, config).choose(query, scored, self._time)
        slm_s = time.perf_counter() - before_slm if choice.asked else 0.0
        if choice.degradation is not None:
            self._degraded.append(choice.degradation)
        if choice.asked:  # episodes may have come and gone meanwhile
            scored = favour(asked.scored(config), choice, config)
        total = in_question(scored, asked.permitted, config)
        picked = (
            pick_episodes(scored, config, total=total, max_clusters=query.max_clusters)
            if two_stage
            else np.zeros(0, dtype=np.int64)
        )
        space = search_space(cluster_map, scored, picked)
        candidates = explain_clusters(
            scored, picked, cluster_map, config, limit=config.cluster_limit, choice=choice
        )
        yield ClusterSelection(candidates, space, revision, choice.fallback)
        selected = time.perf_counter()

        # Whoever reads the answer slowly may find episodes gone.
        wanted = [e for e in scored.episodes[picked].tolist() if e in cluster_map.episodes]
        inside = await self._tools.cache.members(state.ns, cluster_map, wanted)
        outside = await self._net_in_time(net, searching, asked.hits, inside.keys)
        config = weighed_by_order(config, asked.order)
        with self._time.timed(Step.RANK):
            members = asked.permitted.members(concatenate([part for part in (inside, outside) if len(part.keys)]))
            ranked = rank(
                members,
                asked.vector,
                asked.words(members),
                config,
                use_episodes=two_stage,
                bonus=rank_bonus(members, choice, cluster_map, config),
                spoken=speaker_bonus(members, query.text, config) if two_stage else None,
            )
            found = await hydrate(ranked, state, query, config, inside={int(k) for k in inside.keys})
        self.returned = tuple(hit.memory.key for hit in found)
        yield MemoryHits(found)
        ranked_at = time.perf_counter()

        if query.context_tokens > 0 and (context := await self._context(found)) is not None:
            yield context
        space = replace(space, added_by_net=len(outside.keys), ranked=len(members.keys))
        yield RetrieveDone(
            wait_s=self._waited_s,
            embed_s=asked.ready - asked.started,
            select_s=selected - asked.ready,
            rank_s=ranked_at - selected,
            context_s=time.perf_counter() - ranked_at,
            space=space,
            revision=revision,
            degraded=tuple(self._degraded),
            slm_s=slm_s,
        )

    async def _permitted(self, vector: Vector) -> Permitted:
        """Read what the query may see."""
        query, state = self._query, self._state
        matching = None
        if query.where is not None:
            matching = await state.catalog.matching_keys(state.ns, query.where, limit=_FILTER_LIMIT)
        hidden: set[int] = set()
        if not query.include_archived:
            hidden = hidden_clusters(state.map, vector, state.organize, self._config.archived_cosine)
        return Permitted(state.map, matching, hidden)

    async def _vector(self) -> Vector:
        """Return the query's unit vector (dim,), or zeros when words alone must do."""
        query, dim = self._query, self._state.dim
        if self._tools.by_words:
            if not tokens(query.text):
                raise ModelUnavailableError(self._tools.by_words)
            self._degraded.append(Degradation(DegradationKind.DENSE_UNAVAILABLE, self._tools.by_words))
            return np.zeros(dim, dtype=np.float32)
        if query.vector is not None:
            if query.vector.shape != (dim,):
                raise InvalidField(
                    FieldViolation(
                        "query.embedding", f"has {len(query.vector)} numbers, this namespace takes {dim}"
                    )
                )
            return unit(query.vector)
        # Without a word to look up there is nothing to fall back on: then the embedding may take all the time.
        allowed_s = self._time.allowance_s(Step.EMBED) if tokens(query.text) else None
        try:
            with self._time.timed(Step.EMBED):
                rows = await self._tools.embedder.embed(
                    [query.text], priority=Priority.INTERACTIVE, deadline_s=allowed_s
                )
            vector: Vector = rows[0]
        except ModelError as error:
            if not tokens(query.text):
                raise
            self._degraded.append(Degradation(DegradationKind.DENSE_UNAVAILABLE, str(error)))
            return np.zeros(dim, dtype=np.float32)
        return vector

    async def _words(self) -> LexicalHits:
        """Return the lexical matches; under a filter all of them, since the best may not be permitted."""
        config = self._config
        large = self._state.map.memory_count > config.large_memories
        limit = config.lexical_limit_large if large else config.lexical_limit
        limit = limit if self._query.where is None else _FILTER_LIMIT
        text = " ".join(part for part in (self._query.text, self._query.task_hint) if part)
        return await self._state.catalog.lexical(self._state.ns, tokens(text), limit=limit)

    async def _net_in_time(
        self,
        net: SafetyNet,
        searching: asyncio.Task[VectorHits | None],
        hits: LexicalHits,
        inside: NDArray[np.int64],
    ) -> EpisodeMembers:
        """Return the net's members; where time is short none, or of all memories those with the words."""
        wanted = self._query.max_memories or self._config.default_memories

        async def caught() -> EpisodeMembers:
            found = await searching
            if found is not None and not found.complete:
                detail = "some partitions of the vector index could not be searched"
                self._degraded.append(Degradation(DegradationKind.INDEX_REBUILDING, detail))
            return await net.members(found, hits, inside, wanted=wanted)

        try:
            return await self._time.spend(Step.NET, caught)
        except OutOfTime as short:
            self._degraded.append(Degradation(DegradationKind.NET_SKIPPED, str(short)))
        return await net.members(None, hits, inside, wanted=wanted) if net.everywhere else concatenate([])

    async def _context(self, found: Sequence[MemoryHit]) -> AssembledContext | None:
        """Assemble the context; None where time is short."""
        query = self._query
        budget, form, counter = query.context_tokens, query.context_format, self._tools.counter

        async def assembled() -> AssembledContext:
            return await asyncio.to_thread(assemble, found, budget=budget, form=form, counter=counter)

        try:
            return await self._time.spend(Step.CONTEXT, assembled)
        except OutOfTime as short:
            self._degraded.append(Degradation(DegradationKind.CONTEXT_SKIPPED, str(short)))
            return None


def _seen(looking: asyncio.Future[tuple[LexicalHits, int, float]]) -> None:
    """Take note of a failure that nobody waits for any more, because the embedding failed before."""
    if not looking.cancelled():
        looking.exception()
