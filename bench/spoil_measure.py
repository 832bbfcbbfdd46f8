"""What is measured of one model on one conversation: it is organized, then its questions are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from clag.v1 import memory_service_pb2 as pb
from clag_client import AsyncClient

from bench.grouping_data import Asked, Corpus
from bench.grouping_measures import togetherness
from bench.grouping_run import organize, routed_by, votes_that_agree
from bench.spoil_models import Oracle
from clag_server.models.scripted import ScriptedSlm

__all__ = ["TOP", "measured"]

TOP: Final = 10
FEW_CLUSTERS: Final = (1,)
"""Clusters to look into, at most: the paper's way, where what is in another cluster is out of reach."""

_IN_FLIGHT: Final = 8
"""Questions asked at once: they share the embedder's passes, and answers do not depend on it."""


async def measured(
    client: AsyncClient, corpus: Corpus, stand_in: ScriptedSlm | None
) -> Mapping[str, float | int | str]:
    """Organize a conversation and ask its questions.

    Args:
        client: Of a server whose model is ready.
        corpus: The conversation; its name is that of the namespace.
        stand_in: The double in the place of the server's model, if there is one; an oracle is told what it knows.
    """
    if isinstance(stand_in, Oracle):
        stand_in.reveal(corpus, client)
    organized = await organize(client, corpus.name, corpus.items)
    if isinstance(stand_in, Oracle):
        stand_in.settled(organized.cluster_of())
    decisions = organized.decisions()
    votes, agree = votes_that_agree(decisions)
    pairs = togetherness(organized.cluster_of(), [one.evidence for one in corpus.questions])
    recall, choices = await recall_of(client, corpus, pb.SLM_USE_AUTO)
    result: dict[str, float | int | str] = {
        "recall": recall,
        "choices": choices,
        # Where it was never asked, that is what was measured.
        "recall_unasked": (await recall_of(client, corpus, pb.SLM_USE_NEVER))[0] if choices else recall,
        "clusters": len(organized.clusters),
        "pairs_together": pairs.share,
        "pairs_by_chance": pairs.by_chance,
        "by_slm": routed_by(organized.memories)["slm"],
        "votes": votes,
        "superseded": sum(bool(one.superseded_by) for one in organized.memories),
        "seconds": round(organized.seconds),
    }
    if votes:
        result["votes_agree"] = agree / votes
    if choices and stand_in is None:
        return result  # a real model chooses for a third of a second each time
    for most in FEW_CLUSTERS:
        result[f"recall_of_{most}"] = (await recall_of(client, corpus, pb.SLM_USE_AUTO, max_clusters=most))[0]
    return result


async def recall_of(
    client: AsyncClient, corpus: Corpus, slm_use: pb.SlmUse.ValueType, *, max_clusters: int = 0
) -> tuple[float, int]:
    """Ask all questions, looking into so many clusters at most (0: no bound).

    Returns:
        Mean share of the evidence among the first ten hits, and for how many questions the SLM chose.
    """
    turn = asyncio.Semaphore(_IN_FLIGHT)

    async def ask(one: Asked) -> tuple[float, bool]:
        async with turn:
            answer = await client.get_context(
                corpus.name, one.text, max_memories=TOP, max_clusters=max_clusters, slm_use=slm_use
            )
        hits = {hit.memory.memory_id for hit in answer.memories.hits}
        chose = any(candidate.HasField("slm_vote") for candidate in answer.clusters.candidates)
        return len(hits.intersection(one.evidence)) / len(one.evidence), chose

    answers = await asyncio.gather(*(ask(one) for one in corpus.questions))
    return sum(found for found, _ in answers) / len(answers), sum(chose for _, chose in answers)
