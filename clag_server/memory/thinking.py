"""What the SLM is asked about memories that are to evolve, ahead of the round that writes it down.

A round writes the oldest memories whose answers are there; those behind them are already being thought about then,
so that the engine's batch stays full while changes are written. An answer is of the words and the place that its
memory had: where those changed since, it is asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from clag_server.memory import prompts
from clag_server.memory.annotate import Annotation
from clag_server.memory.budgets import SlmBudget
from clag_server.memory.counters import Outcome
from clag_server.memory.evolution_answers import Asked, EvolutionAnswer, ask_evolution
from clag_server.memory.linking import Neighbour, Thought, evolved_before
from clag_server.memory.namespace import NamespaceState
from clag_server.models.api import SlmEngine
from clag_server.types.competence import Skill
from clag_server.types.memory import Annotator, FallbackCause, Memory

_SHARE = 4
"""A round waits for the oldest quarter of what is due: the others keep the engine busy."""


@dataclass(frozen=True, slots=True)
class _Jobs:
    """What the SLM is asked for now."""

    annotation: bool
    evolution: bool

    @property
    def any(self) -> bool:
        return self.annotation or self.evolution


@dataclass(frozen=True, slots=True, eq=False)
class _Considered:
    """A memory as it was when it was first due, and what comes of it."""

    memory: Memory
    neighbours: Sequence[Neighbour]
    shown: Sequence[Neighbour]
    by_terms: Annotation
    jobs: _Jobs
    answer: asyncio.Task[EvolutionAnswer] | None
    """None where the SLM is not asked."""

    @property
    def done(self) -> bool:
        return self.answer is None or self.answer.done()


class Thinking:
    """Thinks about memories of one namespace.

    Args:
        state: The namespace.
        slm: The language model, if there is one.
        budget: How many calls are granted.
    """

    def __init__(self, state: NamespaceState, *, slm: SlmEngine | None, budget: SlmBudget) -> None:
        self._state = state
        self._slm = slm
        self._budget = budget
        self._considered: dict[int, _Considered] = {}

    def unknown(self, due: Sequence[Memory]) -> list[Memory]:
        """Return those of the due memories that are not thought about as they are; forget what is not due."""
        by_key = {memory.key: memory for memory in due}
        for key, one in list(self._considered.items()):
            if key not in by_key or not same(one.memory, by_key[key]):
                self._forget(key)
        return [memory for memory in due if memory.key not in self._considered]

    def begin(
        self,
        memories: Sequence[Memory],
        neighbours: Mapping[int, Sequence[Neighbour]],
        by_terms: Mapping[int, Annotation],
        *,
        patient: bool,
    ) -> None:
        """Ask the SLM about as many as the budget allows, oldest first; the terms stand in for the others."""
        jobs = self._jobs()
        shown = {m.key: self._shown(neighbours[m.key]) if jobs.evolution else [] for m in memories}
        granted: set[int] = set()
        if jobs.any and self._slm is not None:
            # New memories first; of one that was moved only what it may have met.
            asked = [m for m in memories if not evolved_before(m)]
            asked += [m for m in memories if evolved_before(m) and shown[m.key] and _moved_on_purpose(m)]
            count = self._budget.grant(len(asked), now_ns=self._state.now_ns(), patient=patient)
            granted = {m.key for m in asked[:count]}
            self._state.counters.add(Outcome.SLM_EVOLUTION_CALLS, count)
        for memory in memories:
            answer = self._asking(memory, shown[memory.key]) if memory.key in granted else None
            self._considered[memory.key] = _Considered(
                memory, neighbours[memory.key], shown[memory.key], by_terms[memory.key], jobs, answer
            )

    async def ready(self, due: Sequence[Memory], *, more: asyncio.Event | None = None) -> list[Memory]:
        """Wait for the oldest of them; return those that are thought about, up to the first that is not.

        Where `more` is set before, it may be none.
        """
        first = due[: max(1, len(due) // _SHARE)]
        waiting = [one.answer for m in first if (one := self._considered[m.key]).answer is not None]
        if waiting:
            await _first_of(waiting, more)
        for count, memory in enumerate(due):
            if not self._considered[memory.key].done:
                return list(due[:count])
        return list(due)

    def take(self, memory: Memory) -> tuple[Sequence[Neighbour], Thought]:
        """Return the neighbours that a ready memory had, and what is thought of it; it is forgotten then."""
        one = self._considered.pop(memory.key)
        return one.neighbours, self._thought(one)

    async def stop(self) -> None:
        """Ask no more."""
        tasks = [one.answer for one in self._considered.values() if one.answer is not None]
        for key in list(self._considered):
            self._forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, key: int) -> None:
        answer = self._considered.pop(key).answer
        if answer is not None:
            answer.cancel()

    def _jobs(self) -> _Jobs:
        """What the SLM is asked for: what the settings force, or what it is trusted with."""
        trust = self._state.competence.trust
        match self._state.organize.annotate:
            case Annotator.TERMS:
                return _Jobs(annotation=False, evolution=False)
            case Annotator.SLM:
                return _Jobs(annotation=True, evolution=True)
            case Annotator.AUTO:
                known = self._slm is not None
                return _Jobs(
                    annotation=known and trust.asked(Skill.ANNOTATION),
                    evolution=known and trust.asked(Skill.EVOLUTION),
                )

    def _shown(self, neighbours: Sequence[Neighbour]) -> list[Neighbour]:
        """The nearest neighbours that the SLM is to judge: what says the same needs no judgement."""
        wanted = min(self._state.organize.slm_neighbours, prompts.MOST_NEIGHBOURS)
        most = self._state.organize.duplicate_cosine
        return [near for near in neighbours if near.cosine < most][:wanted]

    def _asking(self, memory: Memory, shown: Sequence[Neighbour]) -> asyncio.Task[EvolutionAnswer] | None:
        slm = self._slm
        return None if slm is None else asyncio.create_task(self._ask(slm, memory, shown), name="evolution answer")

    async def _ask(self, slm: SlmEngine, memory: Memory, shown: Sequence[Neighbour]) -> EvolutionAnswer:
        texts = tuple(prompts.spoken(near.memory.text, near.memory.speaker) for near in shown)
        asked = Asked(memory.text, memory.speaker, texts)
        answer = await ask_evolution(slm, asked, deadline_s=self._state.organize.slm_timeout_s or None)
        self._state.counters.add(Outcome.SLM_DROPPED, answer.dropped)
        return answer

    def _thought(self, one: _Considered) -> Thought:
        """Take from an answer what the SLM was asked for, and the terms for what it was not or did not give."""
        if not one.jobs.any:
            return Thought(one.by_terms)
        if self._slm is None:
            return Thought(replace(one.by_terms, fallback=FallbackCause.DISABLED))
        unasked = EvolutionAnswer(None, fallback=FallbackCause.BUDGET)
        answer = unasked if one.answer is None else one.answer.result()
        annotation = answer.annotation if one.jobs.annotation else one.by_terms
        return Thought(
            annotation=annotation or replace(one.by_terms, fallback=answer.fallback),
            links=tuple((one.shown[link.neighbour].placement, link) for link in answer.links),
            updates=tuple((one.shown[update.neighbour].placement, update) for update in answer.updates),
            model=self._slm.name,
        )


async def _first_of(answers: Sequence[asyncio.Task[EvolutionAnswer]], more: asyncio.Event | None) -> None:
    """Wait until all the answers are there, or something more is."""
    all_there = asyncio.create_task(asyncio.wait(answers))
    told = asyncio.create_task((more or asyncio.Event()).wait())
    try:
        await asyncio.wait((all_there, told), return_when=asyncio.FIRST_COMPLETED)
    finally:
        all_there.cancel()
        told.cancel()
        await asyncio.gather(all_there, told, return_exceptions=True)


def same(memory: Memory, now: Memory | None) -> bool:
    """Whether a memory still has the place and the words that it was thought about with."""
    return now is not None and now.cluster == memory.cluster and now.text == memory.text


def _moved_on_purpose(memory: Memory) -> bool:
    """Whether a client or a re-organization moved a memory: routing weighs candidates, and is a part of arriving.

    What routing moves it moves at once, often a third of all memories: a second call for each would cost more than
    it finds.
    """
    return memory.routing is not None and not memory.routing.candidates
