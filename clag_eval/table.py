"""How every memory of a pool scores on a question, out of the product's own explanations.

A retrieval explains each hit with the cosine of its embedding and the question's. Asked in global mode for one
page of the pool after the other (an attribute names the page), it tells the cosine of every memory: all that dense
baselines need, with the embedder of the product and without touching it.
"""

from __future__ import annotations

import asyncio

import numpy as np
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from numpy.typing import NDArray

from clag_eval.stored import PAGE, PAGE_ATTRIBUTE, StoredPool

__all__ = ["cosines"]


async def cosines(stored: StoredPool, question: str) -> NDArray[np.float64]:
    """Return the cosine of each memory of the pool and a question, (n,) in the pool's order.

    A memory that is not told of has that of the duplicate that stands for it. Each question is asked once.
    """
    if question in stored.cosines:
        return stored.cosines[question]
    pages = range((len(stored.pool.memories) + PAGE - 1) // PAGE)
    told = await asyncio.gather(*(_page(stored, question, page) for page in pages))
    by_id = {name: value for page in told for name, value in page.items()}
    values = np.array([by_id.get(memory.id, -1.0) for memory in stored.pool.memories], dtype=np.float64)
    stored.cosines[question] = values
    return values


async def _page(stored: StoredPool, question: str, page: int) -> dict[str, float]:
    answer = await stored.client.get_context(
        stored.namespace,
        question,
        mode=pb.RETRIEVAL_MODE_GLOBAL,
        slm_use=pb.SLM_USE_NEVER,
        max_memories=PAGE,
        include_superseded=True,
        explain=True,
        filter=types_pb2.Filter(
            comparison=types_pb2.Comparison(
                attribute=PAGE_ATTRIBUTE,
                op=types_pb2.FILTER_OPERATOR_EQ,
                value=types_pb2.AttributeValue(int_value=page),
            )
        ),
    )
    found: dict[str, float] = {}
    for hit in answer.memories.hits:
        value = next(part.value for part in hit.score_parts if part.name == "dense")
        for name in (*hit.duplicate_ids, hit.memory.memory_id):
            found[name] = value
    return found
