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

from clag_server.catalog.api import EpisodeMembers, LexicalHits, MatchingKeys
from clag_server.memory.archiving import hidden_clusters
from clag_server.memory.candidates import NearClusters, candidate_episodes, near_clusters
from clag_server.memory.centroids import unit
from clag_server.memory.config import RetrieveConfig
from clag_server.memory.context import assemble
from clag_server.memory.episode_cache import EpisodeCache, concatenate
from clag_server.memory.hits import hydrate
from clag_server.memory.lexical import tokens
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.ranking import rank
from clag_server.memory.selecting import EpisodeScores, explain_clusters, pick_episodes, score_episodes
from clag_server.memory.time_left import OutOfTime, Step, TimeLeft
from clag_server.models.api import Embedder, ModelError, ModelUnavailableError, Priority, TokenCounter
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
    SearchSpace,
    SlmUse,
)
from clag_server.vectors.api import VectorHits

_FILTER_LIMIT = 1_000_000
_GLOBAL_DENSE = 1000
_FEW_PERMITTED = 2_000
"""A filter that leaves no more: all are ranked, for few of the nearest would be permitted."""
_MOST_PERMITTED = 50_000
"""Most that are ranked so (75 MB); of a filter that leaves more, the nearest thousand hold enough."""
_SPARE = 32
"""Memories ranked beyond those asked for: some may have expired or been replaced."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What a retrieval works with; `by_words` says why there is no searching by meaning, "" where there is."""

    embedder: Embedder
    counter: TokenCounter
    cache: EpisodeCache
    config: RetrieveConfig
    by_words: str = ""
    clock: Callable[[], float] = time.monotonic


class Retrieval:
    """One query on its way. Use once: iterate over `stages()`."""

    def __init__(self, query: RetrieveQuery, state: NamespaceState, tools: Tools, *, waited_s: float) -> None:
        self._query = query
        self._state = state
        self._tools = tools
        self._config = tools.config
        self._waited_s = waited_s
        self._degraded: list[Degradation] = []
        self._lexical: dict[int, float] = {}
        self._allowed: MatchingKeys | None = None
        self._hidden: set[int] = set()
        self._near: NearClusters | None = None
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
        looking = asyncio.ensure_future(asyncio.gather(self._words(), state.catalog.revision()))
        looking.add_done_callback(_seen)
        searching: asyncio.Task[VectorHits | None] | None = None
        try:
            vector = await self._vector()
            if query.where is not None:
                self._allowed = await state.catalog.matching_keys(state.ns, query.where, limit=_FILTER_LIMIT)
            if not query.include_archived:
                self._hidden = hidden_clusters(state.map, vector, state.organize, self._config.archived_cosine)
            searching = asyncio.create_task(self._search(vector, everywhere=query.mode is RetrieveMode.GLOBAL))
            self._near = near_clusters(state.map, vector, self._config)
            hits, revision = await looking
            self._lexical = {int(k): float(s) for k, s in zip(hits.keys, hits.scores, strict=True)}
            embedded = time.perf_counter()
            async for stage in self._ranked(vector, hits, revision, searching, started=started, embedded=embedded):
                yield stage
        finally:
            looking.cancel()
            if searching is not None:
                searching.cancel()

    async def _ranked(
        self,
        vector: Vector,
        hits: LexicalHits,
        revision: int,
        searching: asyncio.Task[VectorHits | None],
        *,
        started: float,
        embedded: float,
    ) -> AsyncIterator[RetrieveStage]:
        """Yield the stages that follow from the query's vector and words."""
        query, state = self._query, self._state
        scored = self._score(vector, hits)
        two_stage = query.mode is RetrieveMode.TWO_STAGE
        total = self._total(scored)
        picked = (
            pick_episodes(scored, self._config, total=total, max_clusters=query.max_clusters)
            if two_stage
            else np.zeros(0, dtype=np.int64)
        )
        space = self._space(scored, picked)
        candidates = explain_clusters(scored, picked, state.map, self._config, limit=self._config.cluster_limit)
        yield ClusterSelection(candidates, space, revision)
        selected = time.perf_counter()

        inside = await self._tools.cache.members(state.ns, state.map, [int(e) for e in scored.episodes[picked]])
        net = await self._net_in_time(searching, hits, inside.keys, everywhere=not two_stage)
        with self._time.timed(Step.RANK):
            members = self._permit(concatenate([part for part in (inside, net) if len(part.keys)]))
            words = np.array([self._lexical.get(int(key), 0.0) for key in members.keys], dtype=np.float64)
            ranked = rank(members, vector, words, self._config, use_episodes=two_stage)
            found = await hydrate(ranked, state, query, self._config, inside={int(k) for k in inside.keys})
        self.returned = tuple(hit.memory.key for hit in found)
        yield MemoryHits(found)
        ranked_at = time.perf_counter()

        if query.context_tokens > 0 and (context := await self._context(found)) is not None:
            yield context
        space = replace(space, added_by_net=len(net.keys), ranked=len(members.keys))
        yield RetrieveDone(
            wait_s=self._waited_s,
            embed_s=embedded - started,
            select_s=selected - embedded,
            rank_s=ranked_at - selected,
            context_s=time.perf_counter() - ranked_at,
            space=space,
            revision=revision,
            degraded=tuple(self._degraded),
        )

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
        if self._query.slm_use is SlmUse.ALWAYS:
            detail = "selection by the SLM is not served by this release"
            self._degraded.append(Degradation(DegradationKind.SLM_SKIPPED, detail))
        config = self._config
        large = self._state.map.memory_count > config.large_memories
        limit = config.lexical_limit_large if large else config.lexical_limit
        limit = limit if self._query.where is None else _FILTER_LIMIT
        text = " ".join(part for part in (self._query.text, self._query.task_hint) if part)
        return await self._state.catalog.lexical(self._state.ns, tokens(text), limit=limit)

    def _score(self, vector: Vector, hits: LexicalHits) -> EpisodeScores:
        """Score the episodes that may be picked: of active clusters, holding a permitted memory."""
        cluster_map = self._state.map
        allowed = None if self._allowed is None else self._allowed.episodes
        found = candidate_episodes(
            cluster_map,
            vector,
            self._near,
            with_words=np.concatenate([hits.episodes, self._of_archived()]),
            permitted=allowed,
            config=self._config,
        )
        numbers = found.numbers
        sizes = found.sizes if allowed is None else _counted(numbers, allowed)
        keep = sizes > 0
        if self._hidden:
            keep &= ~np.isin(found.clusters, list(self._hidden))
        numbers = numbers[keep]
        permitted = self._permitted(hits.keys)
        return score_episodes(
            numbers,
            found.clusters[keep],
            sizes[keep],
            found.cosines[keep],
            _best(numbers, hits.episodes[permitted], hits.scores[permitted]),
            dense_weight=self._config.dense_weight,
            floor=found.floor,
        )

    def _total(self, scored: EpisodeScores) -> int:
        """Return how many memories might be picked: those that a filter leaves, else all of the namespace."""
        cluster_map = self._state.map
        if len(cluster_map.episode_centroids) <= self._config.exact_episodes:
            return int(scored.sizes.sum())
        return cluster_map.memory_count if self._allowed is None else len(self._allowed.keys)

    async def _search(self, vector: Vector, *, everywhere: bool) -> VectorHits | None:
        """Search the nearest partitions, or the whole namespace; None when there is no vector to search with."""
        state, config = self._state, self._config
        if not vector.any():
            return None
        clusters = None
        if not everywhere:
            clusters = [n for n, _ in state.map.routable.nearest(vector, config.net_partitions)]
            clusters += sorted(state.map.provisional | (state.map.archived - self._hidden))
        # Under a filter most hits may not be permitted: look deeper.
        limit = _GLOBAL_DENSE if everywhere or self._allowed is not None else config.net
        return await state.index.search(state.ns, clusters, vector, limit=limit)

    async def _net(
        self, found: VectorHits | None, hits: LexicalHits, inside: NDArray[np.int64], *, everywhere: bool
    ) -> EpisodeMembers:
        """Return the best dense and lexical matches outside the picked episodes."""
        state = self._state
        size = _GLOBAL_DENSE if everywhere else self._config.net
        keys: list[int] = [int(k) for k in hits.keys[self._permitted(hits.keys)][:size]]
        if found is not None:
            if not found.complete:
                detail = "some partitions of the vector index could not be searched"
                self._degraded.append(Degradation(DegradationKind.INDEX_REBUILDING, detail))
            current = await state.catalog.keys_of_placements(state.ns, [hit.placement_id for hit in found.hits])
            dense = [current[hit.placement_id] for hit in found.hits if hit.placement_id in current]
            permitted = self._permitted(np.array(dense, dtype=np.int64))
            keys += [key for key, allowed in zip(dense, permitted, strict=True) if allowed][:size]
        if everywhere and self._allowed is not None:
            # The nearest of all memories may hold few that are permitted: then those are ranked, not the nearest.
            wanted = self._query.max_memories or self._config.default_memories
            few = len(self._allowed.keys) <= _FEW_PERMITTED or len(set(keys)) < wanted + _SPARE
            keys += self._allowed.keys[:_MOST_PERMITTED].tolist() if few else []
        known = set(inside.tolist())
        return await state.catalog.members_of(state.ns, [k for k in dict.fromkeys(keys) if k not in known])

    async def _net_in_time(
        self,
        searching: asyncio.Task[VectorHits | None],
        hits: LexicalHits,
        inside: NDArray[np.int64],
        *,
        everywhere: bool,
    ) -> EpisodeMembers:
        """Return the net's members; where time is short none, or of all memories those with the words."""

        async def net() -> EpisodeMembers:
            return await self._net(await searching, hits, inside, everywhere=everywhere)

        try:
            return await self._time.spend(Step.NET, net)
        except OutOfTime as short:
            self._degraded.append(Degradation(DegradationKind.NET_SKIPPED, str(short)))
        return await self._net(None, hits, inside, everywhere=True) if everywhere else concatenate([])

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

    def _permitted(self, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        if self._allowed is None:
            return np.ones(len(keys), dtype=np.bool_)
        return np.isin(keys, self._allowed.keys)

    def _permit(self, members: EpisodeMembers) -> EpisodeMembers:
        """Leave out what the filter or an archived cluster forbids."""
        keep = self._permitted(members.keys)
        if self._hidden:
            keep &= np.array([self._searched(int(e)) for e in members.episodes], dtype=np.bool_)
        return EpisodeMembers(
            members.keys[keep], members.episodes[keep], members.positions[keep], members.vectors[keep]
        )

    def _searched(self, episode: int) -> bool:
        known = self._state.map.episodes.get(episode)
        return known is None or known.cluster not in self._hidden

    def _of_archived(self) -> NDArray[np.int64]:
        """Return the episodes of archived clusters that this question searches: centroids do not lead to them."""
        cluster_map = self._state.map
        shown = cluster_map.archived - self._hidden
        return np.array(sorted(e for n in shown for e in cluster_map.cluster_episodes.get(n, ())), dtype=np.int64)

    def _space(self, scored: EpisodeScores, picked: NDArray[np.int64]) -> SearchSpace:
        clusters = self._state.map.clusters
        selected = np.unique(scored.clusters[picked])
        return SearchSpace(
            total=self._state.map.memory_count,
            in_selected_clusters=sum(clusters[int(c)].memory_count for c in selected),
            in_picked_episodes=int(scored.sizes[picked].sum()),
            clusters_total=len(clusters),
            clusters_selected=len(selected),
            episodes_total=len(self._state.map.episodes),
            episodes_picked=len(picked),
        )


def _seen(looking: asyncio.Future[tuple[LexicalHits, int]]) -> None:
    """Take note of a failure that nobody waits for any more, because the embedding failed before."""
    if not looking.cancelled():
        looking.exception()


def _rows(numbers: NDArray[np.int64], wanted: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return for each of `wanted` its row in `numbers`, and whether it is there (rows of absent ones are 0)."""
    if len(numbers) == 0:
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=np.bool_)
    order = np.argsort(numbers, kind="stable")
    places = np.minimum(np.searchsorted(numbers, wanted, sorter=order), len(numbers) - 1)
    rows = order[places]
    return rows, numbers[rows] == wanted


def _counted(numbers: NDArray[np.int64], members: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how often each number occurs in `members`."""
    rows, known = _rows(numbers, members)
    return np.bincount(rows[known], minlength=len(numbers))[: len(numbers)].astype(np.int64)


def _best(
    numbers: NDArray[np.int64], members: NDArray[np.int64], scores: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the best score of each number, zero where it has none."""
    rows, known = _rows(numbers, members)
    best = np.zeros(len(numbers), dtype=np.float64)
    np.maximum.at(best, rows[known], scores[known])
    return best
