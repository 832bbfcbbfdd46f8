"""A plan by the language model: clusters in coarse groups, one bounded prompt each, every number checked.

Coarse first: the clusters' centroids are parted until a group and its part of the sample fit a prompt. Then fine:
the model sees one group at a time, and its steps stay inside it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from clag_server.memory.config import OrganizeConfig
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.reorganizing.draft import PlanDraft
from clag_server.memory.reorganizing.interpreting import Interpreter
from clag_server.memory.reorganizing.layout import Layout, Numbers, centroids, unit_rows
from clag_server.memory.reorganizing.prompts import ANSWER_TOKENS, SCHEMA, plan_prompt, read_steps
from clag_server.memory.reorganizing.sampling import Sampled
from clag_server.memory.splitting import parts_of
from clag_server.models.api import Priority, SlmEngine, TokenCounter
from clag_server.types.memory import DecidedBy, Matrix

__all__ = ["SlmPlanner"]

_GROUP = 12
"""Clusters of one group: their profiles take half of a prompt of 1,500 tokens."""

_SHOWN = 24
"""Memories of one prompt, at most."""

_PROMPTS = 32
"""Prompts of one plan, at most: the groups of most sampled memories are looked at."""

_CHARACTERS = 120
_LEAST_CHARACTERS = 40
_DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True)
class _Page:
    """What one prompt shows: clusters by number, and memories."""

    clusters: tuple[int, ...]
    memories: tuple[Sampled, ...]


class SlmPlanner:
    """Asks a language model for a plan.

    Args:
        slm: The model.
        counter: Counts tokens as it does.
        config: Thresholds.
    """

    def __init__(self, slm: SlmEngine, counter: TokenCounter, config: OrganizeConfig) -> None:
        self._slm = slm
        self._counter = counter
        self._config = config

    async def plan(
        self,
        state: NamespaceState,
        layout: Layout,
        sample: Sequence[Sampled],
        *,
        variant: int,
        target: int,
        told: Callable[[int, int], Awaitable[None]],
    ) -> PlanDraft:
        """Return a plan; steps that cannot be are counted in it.

        Args:
            state: The namespace.
            layout: Where everything is.
            sample: The memories to show.
            variant: Which way of asking.
            target: About how many clusters to aim for, 0 for none.
            told: Hears of every prompt that was answered (done, total).

        Raises:
            ModelError: The model does not answer, or its answer is no plan.
        """
        draft = PlanDraft(layout, DecidedBy.SLM)
        interpreter = Interpreter(draft)
        pages = _pages(layout, sample)
        purpose = state.namespace.settings.purpose
        for done, page in enumerate(pages):
            await told(done, len(pages))
            prompt = self._prompt(layout, page, variant=variant, target=target, purpose=purpose)
            answer = await self._slm.generate(
                prompt,
                schema=SCHEMA,
                max_tokens=ANSWER_TOKENS,
                priority=Priority.BULK,
                deadline_s=_DEADLINE_S,
            )
            interpreter.take(read_steps(answer.value), page.clusters, page.memories)
        await told(len(pages), len(pages))
        return draft

    def _prompt(self, layout: Layout, page: _Page, *, variant: int, target: int, purpose: str) -> str:
        """Return a prompt within the bound: texts get shorter, then fewer, until it fits."""
        clusters = [layout.clusters[number] for number in page.clusters]
        memories = [(int(layout.homes[one.row]), one.memory.text) for one in page.memories]
        characters = _CHARACTERS
        while True:
            prompt = plan_prompt(
                clusters, memories, variant=variant, characters=characters, purpose=purpose, target=target
            )
            if self._counter.count([prompt])[0] <= self._config.reorganize_prompt_tokens or not memories:
                return prompt
            if characters > _LEAST_CHARACTERS:
                characters = max(_LEAST_CHARACTERS, characters // 2)
            else:
                memories = memories[: len(memories) * 3 // 4]


def _pages(layout: Layout, sample: Sequence[Sampled]) -> list[_Page]:
    """Part the movable clusters into groups of like ones, and the sample among them."""
    numbers, sums, _ = centroids(layout.vectors, layout.homes)
    movable = np.isin(numbers, np.array(sorted(layout.movable), dtype=np.int64))
    numbers, heads = numbers[movable], unit_rows(sums[movable])
    groups = _grouped(numbers, heads)
    pages = []
    for group in groups:
        mine = [one for one in sample if int(layout.homes[one.row]) in group]
        pages += [
            _Page(tuple(sorted(group)), tuple(mine[start : start + _SHOWN]))
            for start in range(0, max(len(mine), 1), _SHOWN)
        ]
    pages.sort(key=lambda page: (-len(page.memories), page.clusters))
    return pages[:_PROMPTS]


def _grouped(numbers: Numbers, heads: Matrix) -> list[set[int]]:
    """Return the clusters in groups of at most `_GROUP`, like with like."""
    if len(numbers) <= _GROUP:
        return [{int(n) for n in numbers}] if len(numbers) else []
    parts = parts_of(heads, 2)
    if parts is None:
        half = len(numbers) // 2
        parts = [np.arange(half), np.arange(half, len(numbers))]
    return [group for part in parts for group in _grouped(numbers[part], heads[part])]
