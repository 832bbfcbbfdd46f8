"""The SLM's votes on routed episodes, in the order in which they were routed, recorded beside the decision.

Votes wait in memory: while the SLM is away the decision stands as DEFERRED and is asked for again when it is back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from clag_server.memory.counters import Outcome
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.voting import TEXT_CHARACTERS, option, vote
from clag_server.models.api import ChoiceOption, SlmEngine
from clag_server.types.cluster import Move, PlacementPlan
from clag_server.types.memory import DecidedBy, FallbackCause, RoutingDecision

_MAX_WAITING = 10_000
_EXAMPLES = 2
_DEADLINE_S = 120.0


class VoteStage:
    """Collects routed episodes and asks the SLM about them, one after the other."""

    def __init__(self, state: NamespaceState, *, slm: SlmEngine | None) -> None:
        self._state = state
        self._slm = slm
        self._waiting: deque[Move] = deque(maxlen=_MAX_WAITING)

    def add(self, routed: Sequence[Move]) -> None:
        """Queue routed episodes; the oldest are dropped when ten thousand wait (they keep the vectors' choice)."""
        if self._slm is not None:
            self._waiting.extend(move for move in routed if len(move.routing.candidates) > 1)

    @property
    def waiting(self) -> int:
        """Episodes that wait for a vote."""
        return len(self._waiting)

    async def round(self) -> bool:
        """Ask about one episode. Returns False when nothing waits or the SLM is away (try again later)."""
        if not self._waiting or self._slm is None:
            return False
        move = self._waiting[0]
        decision = await self._ask(self._slm, move)
        await self._record(replace(move, routing=decision))
        if decision.decided_by is DecidedBy.DEFERRED:
            return False
        self._waiting.popleft()
        return True

    async def _ask(self, slm: SlmEngine, move: Move) -> RoutingDecision:
        state = self._state
        members = await state.catalog.episode_members(state.ns, [move.episode])
        keys = [int(key) for key in members.keys]
        memories = await state.catalog.memories(state.ns, keys)
        text = "\n".join(memory.text for memory in memories)[: 2 * TEXT_CHARACTERS]
        if not text:
            return move.routing
        options = {c.cluster: await self._option(c.cluster) for c in move.routing.candidates}
        known = {number: found for number, found in options.items() if found is not None}
        return await vote(slm, text, move.routing, known, deadline_s=_DEADLINE_S)

    async def _option(self, number: int) -> ChoiceOption | None:
        state = self._state
        cluster = state.map.clusters.get(number)
        if cluster is None or not cluster.title:
            return None
        examples = await state.catalog.memories(state.ns, cluster.representatives[:_EXAMPLES])
        return option(state.ns, cluster, [memory.text for memory in examples])

    async def _record(self, move: Move) -> None:
        """Store the decision where it still holds: the episode was not moved since."""
        state = self._state
        old = self._waiting[0].routing
        decision = move.routing
        if decision == old:
            return
        async with state.lock:
            episode = state.map.episodes.get(move.episode)
            if episode is None or episode.cluster != move.cluster:
                return
            await state.commit(PlacementPlan(routed_episodes=[move]))
        self._waiting[0] = move
        if decision.vote is not None:
            state.counters.add(Outcome.SLM_VOTES)
            state.counters.add(Outcome.SLM_AGREED, int(decision.vote == move.cluster))
        elif decision.decided_by is DecidedBy.DEFERRED:
            state.counters.add(Outcome.DEFERRED)
        elif decision.fallback is not FallbackCause.NONE:
            state.counters.add_fallback(Outcome.VOTE_FALLBACKS, decision.fallback)
