"""The SLM's say in routing: episodes that the vectors have placed are asked about, many at once, and settled.

What waits is written down with the memories (`RoutingDecision.awaits_slm`) and mirrored in `ClusterMap.undecided`,
so a restart, a long absence of the SLM and a split of the cluster lose no vote. While the SLM is away the decisions
stand as DEFERRED. Decisions are recorded in the order of their episodes, each wave in one transaction, and only
where they still hold: an episode that changed meanwhile is asked about again, one that a client moved never.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest

import numpy as np

from clag_server.memory.counters import Outcome
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.routing_candidates import choice_for
from clag_server.memory.routing_question import Questions
from clag_server.memory.vote_forms import score_options
from clag_server.memory.voting import Question, settled, vote, without_vote
from clag_server.models.api import ChoiceOption, ModelError, Priority, SlmEngine, UnusableOutputError
from clag_server.types.cluster import ClusterState, Episode
from clag_server.types.competence import Skill, TrustPolicy
from clag_server.types.memory import DecidedBy, FallbackCause, Memory, RoutingDecision

_DEADLINE_S = 600.0
"""For a whole wave on a machine that has other work to do; a worker that hangs is ended by its own watchdog."""
_RETRY_S = 2.0
"""Pause before an SLM that was away is tried again; it doubles with every failure,"""
_MAX_RETRY_S = 30.0
"""... up to this: many namespaces may wait for one SLM."""
_MAX_ATTEMPTS = 4
"""Failed calls about one episode, by an SLM that answers others, after which the vectors' choice stands."""
_MARKED_A_ROUND = 64
"""Episodes that are marked DEFERRED, or settled without the SLM, in one transaction."""
_HARMLESS = (ChoiceOption("harmless/1", "A note:"), ChoiceOption("harmless/2", "Another note:"))
"""A choice that every working SLM makes; tells a poisonous memory from an SLM that is away."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An episode as it was when it was looked at: its members in order, and the decision that awaits the SLM."""

    episode: Episode
    members: tuple[Memory, ...]
    marked: int
    """A member (key) that carries the decision."""
    decision: RoutingDecision

    @property
    def number(self) -> int:
        """Number of the episode."""
        return self.episode.episode

    @property
    def was_deferred(self) -> bool:
        """Whether the decision said DEFERRED already."""
        return self.decision.decided_by is DecidedBy.DEFERRED


@dataclass(frozen=True, slots=True)
class _Settled:
    """What was decided about an episode: where it goes, under which decision."""

    waiting: _Waiting
    decision: RoutingDecision

    @property
    def target(self) -> int:
        """The cluster that was settled on."""
        by_slm = self.decision.decided_by is DecidedBy.SLM
        return self.decision.candidates[0].cluster if by_slm else self.waiting.episode.cluster

    @property
    def deferred(self) -> bool:
        """Whether it is to be asked about again."""
        return self.decision.decided_by is DecidedBy.DEFERRED


class VoteStage:
    """Asks the SLM about the routed episodes of one namespace, as far as it is trusted."""

    def __init__(self, state: NamespaceState, *, slm: SlmEngine | None) -> None:
        self._state = state
        self._slm = slm
        self._away = False
        self._pause_s = 0.0
        self._try_at = 0.0
        """When (of the loop's clock) an SLM that was away is tried again."""
        self._attempts: Counter[int] = Counter()
        self._deferred: set[int] = set()
        """Episodes whose decision is known to say DEFERRED."""

    @property
    def retry_s(self) -> float | None:
        """In how many seconds an SLM that was away is to be tried again; None when nothing waits for that."""
        if not self._away or not self._state.map.undecided:
            return None
        return max(0.0, self._try_at - asyncio.get_running_loop().time())

    async def round(self) -> bool:
        """Do some of the work; returns False when none is left that can be done now."""
        if not self._state.map.undecided:
            self._attempts.clear()
            self._deferred.clear()
            return False
        cause = self._state.unasked()
        if self._slm is None or cause is not FallbackCause.NONE:
            return await self._settle_without(cause)
        if self._away and asyncio.get_running_loop().time() >= self._try_at:
            self._note(away=not await self._answers(self._slm))
        return await self._defer() if self._away else await self._wave(self._slm)

    async def _settle_without(self, cause: FallbackCause) -> bool:
        """Leave what waits to the vectors, for the SLM will not be asked; while the probe has not told, wait."""
        competence = self._state.competence
        told = competence.policy is not TrustPolicy.PROBE or competence.report is not None
        if cause is FallbackCause.NOT_TRUSTED and not told:
            return False
        found = await self._look(nsmallest(_MARKED_A_ROUND, self._state.map.undecided))
        await self._record([_Settled(one, settled(one.decision, cause)) for one in found])
        return True

    def _note(self, *, away: bool) -> None:
        """Remember whether the SLM answers, and when it is tried again if not."""
        self._pause_s = min(2 * self._pause_s, _MAX_RETRY_S) if self._away else _RETRY_S
        self._away = away
        self._try_at = asyncio.get_running_loop().time() + self._pause_s

    async def _answers(self, slm: SlmEngine) -> bool:
        """Whether the SLM is back."""
        try:
            form = self._state.competence.form
            await score_options(form, slm, "a note", _HARMLESS, priority=Priority.ORGANIZE, deadline_s=_DEADLINE_S)
        except UnusableOutputError:
            return True  # it is there, and said something else
        except ModelError:
            return False
        return True

    async def _defer(self) -> bool:
        """Mark what waits as DEFERRED; returns whether more is to be marked."""
        unmarked = self._state.map.undecided - self._deferred
        found = await self._look(nsmallest(_MARKED_A_ROUND, unmarked))
        self._deferred.update(one.number for one in found if one.was_deferred)
        away = FallbackCause.UNAVAILABLE
        fresh = [_Settled(one, without_vote(one.decision, away)) for one in found if not one.was_deferred]
        self._count(await self._record(fresh))
        return bool(unmarked)

    async def _wave(self, slm: SlmEngine) -> bool:
        """Ask about the next episodes, all at once, and record what was settled."""
        state = self._state
        weight = state.competence.trust.weight(Skill.ROUTING)
        found, questions = await self._look(self._next()), Questions(state)
        asked: list[tuple[_Waiting, Question | None]] = []
        for one in found:
            choice = choice_for(state.map, state.organize, one.episode)
            asked.append((one, None if choice is None else await questions.ask(one.episode, one.members, choice)))
        async with asyncio.TaskGroup() as group:
            answers = [group.create_task(self._ask(slm, one, question, weight)) for one, question in asked]
        decided = [answer.result() for answer in answers]
        self._note(away=any(one.deferred for one in decided))
        final = [self._given_up(one) for one in decided]
        # What says DEFERRED already need not be told again.
        self._count(await self._record([one for one in final if not (one.deferred and one.waiting.was_deferred)]))
        return True

    async def _ask(self, slm: SlmEngine, one: _Waiting, question: Question | None, weight: float) -> _Settled:
        if question is None or not question.text:
            return _Settled(one, settled(one.decision, FallbackCause.NONE))
        decision = await vote(
            slm,
            question,
            one.decision,
            weight=weight,
            now_ns=self._state.now_ns(),
            deadline_s=_DEADLINE_S,
            form=self._state.competence.form,
        )
        return _Settled(one, decision)

    def _next(self) -> list[int]:
        """Return the next episodes to ask about: one that failed before alone, so that it fails alone."""
        waiting = nsmallest(self._state.organize.vote_batch, self._state.map.undecided)
        if self._attempts[waiting[0]]:
            return waiting[:1]
        return [number for number in waiting if not self._attempts[number]]

    def _given_up(self, one: _Settled) -> _Settled:
        """Count failed attempts at an episode; in the end the vectors' choice stands."""
        if not one.deferred:
            self._attempts.pop(one.waiting.number, None)
            return one
        self._attempts[one.waiting.number] += 1
        if self._attempts[one.waiting.number] < _MAX_ATTEMPTS:
            return one
        return replace(one, decision=settled(one.decision, one.decision.fallback))

    async def _look(self, numbers: Collection[int]) -> list[_Waiting]:
        """Read episodes that may wait, in their order; those that do not are forgotten."""
        state = self._state
        episodes = {n: state.map.episodes[n] for n in sorted(numbers) if n in state.map.episodes}
        places = await state.catalog.episode_members(state.ns, list(episodes))
        members: dict[int, list[Memory]] = {}
        for memory in await state.catalog.memories(state.ns, [int(key) for key in places.keys]):
            if memory.episode is not None:
                members.setdefault(memory.episode, []).append(memory)
        found: list[_Waiting] = []
        for number in numbers:
            awaiting = [(m.key, m.routing) for m in members.get(number, ()) if m.routing and m.routing.awaits_slm]
            if number not in episodes or not awaiting:
                state.map.undecided.discard(number)
                continue
            key, decision = awaiting[0]
            found.append(_Waiting(episodes[number], tuple(members[number]), key, decision))
        return found

    async def _record(self, decided: Sequence[_Settled]) -> list[_Settled]:
        """Write decisions where they still hold, in one transaction; returns those.

        Behind one that does not hold, its session's later ones wait too: a session's episodes keep their order.
        """
        if not decided:
            return []
        state = self._state
        recorded: list[_Settled] = []
        held: set[str] = set()
        async with state.placing() as placer:
            marked = await state.catalog.memories(state.ns, [one.waiting.marked for one in decided])
            now = {memory.key: memory for memory in marked}
            for one in decided:
                session = one.waiting.episode.session_id
                if session in held or not self._holds(one, now):
                    held.add(session)
                    continue
                placer.settle(one.waiting.number, one.target, one.decision)
                recorded.append(one)
        return recorded

    def _holds(self, one: _Settled, now: Mapping[int, Memory]) -> bool:
        """Whether an episode is as it was, nobody has decided about it since, and its target is there."""
        episode, before = self._state.map.episodes.get(one.waiting.number), one.waiting.episode
        memory = now.get(one.waiting.marked)
        if episode is None or memory is None or memory.routing is None or not memory.routing.awaits_slm:
            return False
        if memory.episode != before.episode or episode.cluster != before.cluster:
            return False
        if not np.array_equal(episode.vector_sum, before.vector_sum):
            return False
        source, target = (self._state.map.clusters.get(n) for n in (before.cluster, one.target))
        if source is target:
            return source is not None
        return (
            source is not None
            and target is not None
            and not source.pinned
            and source.state is target.state is ClusterState.ACTIVE
        )

    def _count(self, recorded: Iterable[_Settled]) -> None:
        counters = self._state.counters
        for one in recorded:
            if one.decision.decided_by is DecidedBy.SLM:
                stays = one.target == one.waiting.episode.cluster
                counters.add(Outcome.SLM_VOTES)
                counters.add(Outcome.SLM_AGREED, int(stays))
                counters.add(Outcome.SLM_MOVED, int(not stays))
            elif one.deferred:
                self._deferred.add(one.waiting.number)
                counters.add(Outcome.DEFERRED)
            elif one.decision.fallback is not FallbackCause.NONE:
                counters.add_fallback(Outcome.VOTE_FALLBACKS, one.decision.fallback)
