"""The product itself, as a client gets it: one call for the ten best, one for each context.

`clag`, `cosine` and `kmeans` differ in how their servers group memories, `global` ranks all memories with the
product's own hybrid score, and `amem` does so on a server without clusters, where memories evolve with all others.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from clag.v1 import memory_service_pb2 as pb

from clag_eval.data import Question
from clag_eval.methods.base import EVERYTHING, Budgets, Found, SearchSpace
from clag_eval.metrics import K
from clag_eval.stored import StoredPool

__all__ = ["Product"]

_TOKENS_OF_A_MEMORY: Final = 14
"""Least tokens of a labelled memory: more hits than budget / so many never fit."""
_MOST: Final = 256


class Product:
    """Retrieval through `GetContext`.

    Args:
        name: Its name in reports.
        budgets: Token budgets of contexts.
        everywhere: Rank all memories instead of selecting clusters first.
    """

    def __init__(self, name: str, budgets: Budgets, *, everywhere: bool = False) -> None:
        self.name = name
        self._budgets = budgets
        self._everywhere = everywhere

    async def prepare(self, stored: StoredPool) -> None:
        """Let the server load what it loads on the first question."""
        if stored.pool.questions:
            await self._ask(stored, stored.pool.questions[0].text, hits=K)

    async def find(self, stored: StoredPool, question: Question) -> Found:
        """Ask for the ten best, timed, then for the contexts."""
        started = time.perf_counter()
        best = await self._ask(stored, question.text, hits=K)
        seconds = time.perf_counter() - started
        budgets = self._budgets.all
        shown = await asyncio.gather(
            *(
                self._ask(stored, question.text, hits=min(_MOST, budget // _TOKENS_OF_A_MEMORY), tokens=budget)
                for budget in budgets
            )
        )
        for answer in shown:
            stored.estimate.learn(answer.context.text, answer.context.tokens)
        return Found(
            ranked=tuple(hit.memory.memory_id for hit in best.memories.hits),
            space=EVERYTHING if self._everywhere else _space(best.done.search_space),
            contexts={
                budget: tuple(answer.context.memory_ids) for budget, answer in zip(budgets, shown, strict=True)
            },
            tokens={budget: answer.context.tokens for budget, answer in zip(budgets, shown, strict=True)},
            seconds=seconds,
            selection=None if self._everywhere else best.clusters,
        )

    async def _ask(self, stored: StoredPool, text: str, *, hits: int, tokens: int = 0) -> pb.GetContextResponse:
        return await stored.client.get_context(
            stored.namespace,
            text,
            mode=pb.RETRIEVAL_MODE_GLOBAL if self._everywhere else pb.RETRIEVAL_MODE_TWO_STAGE,
            slm_use=stored.slm_use,
            max_memories=hits,
            context_tokens=tokens,
        )


def _space(space: pb.SearchSpace) -> SearchSpace:
    total = max(1, space.memories_total)
    return SearchSpace(
        picked=space.memories_in_picked_episodes / total,
        clusters=space.memories_in_selected_clusters / total,
        net=space.memories_added_by_net / total,
    )
