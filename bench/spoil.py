"""A bad model cannot spoil it: evidence recall with language models that are random, biased, real, or an oracle.

Each model organizes the same conversation on a server of its own; then every question is asked without the SLM.
What differs is only what the model did to routing and evolution. Recall is measured as users get it, and with at
most three and at most one cluster to look into (the paper's way): retrieval picks episodes, in which no model has a
say, so an episode in the wrong cluster costs nothing unless clusters are what is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from clag.v1 import memory_service_pb2 as pb
from clag_client import AsyncClient

from bench.grouping import probe_or_say
from bench.grouping_data import DATA_DIR, Corpus, corpora
from bench.grouping_measures import togetherness
from bench.grouping_report import Report, Result, table
from bench.grouping_run import organize, routed_by, slm_ready, votes_that_agree
from bench.server import running_server, temporary_root
from bench.spoil_models import Oracle, double, in_place_of_the_slm

MODELS: Final = ("random", "first", "last", "oracle", "smollm2-135m-instruct")
DATA: Final = ("locomo:conv-26", "locomo:conv-30")
TRUSTS: Final = ("probe", "full")
TOP: Final = 10
MOST_CLUSTERS: Final = (0, 3, 1)
"""Clusters to look into, at most; 0 leaves it to the scores, as users do."""
BASELINE: Final = "none"

_GOALS: Final = {"probe": 1.0, "full": 5.0}
"""Points of recall that a bad model may cost."""
_GAIN: Final = 2.0
"""Points of recall that an oracle is to gain."""
_COLUMNS: Final = {
    "recall": "recall@10",
    "recall_of_3": "3 clusters",
    "recall_of_1": "1 cluster",
    "pairs_together": "pairs",
    "clusters": "clusters",
    "by_slm": "by SLM",
    "votes": "votes",
    "votes_agree": "agree",
    "weight": "weight",
    "superseded": "superseded",
    "seconds": "seconds",
}


async def main(
    *,
    quick: bool,
    slm: str | None = None,
    models: Sequence[str] = MODELS,
    data: Sequence[str] = DATA,
    data_dir: Path = DATA_DIR,
    limit: int = 0,
    trusts: Sequence[str] = TRUSTS,
    report: Path | None = None,
) -> None:
    """Organize each conversation with each model and print what that did to recall."""
    wanted = [*models, *([slm] if slm and slm not in models else [])]
    if quick:
        wanted = [name for name in wanted if double(name) is not None]
    found, absent = corpora(data[:1] if quick else data, data_dir, limit=limit or (200 if quick else 0))
    for reason in absent:
        print(f"skipped {reason}", flush=True)
    kept = Report(report)
    losses: dict[str, list[float]] = {}
    for corpus in found:
        rows = await _compared(kept, corpus, wanted, trusts)
        print(f"\n{corpus.name}: {len(corpus.items)} memories, {len(corpus.questions)} questions")
        print(table(rows, _COLUMNS))
        for name, row in rows.items():
            losses.setdefault(name, []).append(100 * (float(rows[BASELINE]["recall"]) - float(row["recall"])))
    for name, points in losses.items():
        if name != BASELINE:
            print(_verdict(name, points))
    if found:
        shown = ", ".join(f"{name} {-sum(p) / len(p):+.1f}" for name, p in losses.items() if name != BASELINE)
        print(f"spoil: points of recall@{TOP} against vectors alone: {shown}")


async def _compared(
    kept: Report, corpus: Corpus, models: Sequence[str], trusts: Sequence[str]
) -> dict[str, Result]:
    """Results by model and trust; the first is that of no model at all."""
    cases = [(BASELINE, BASELINE)]
    # The probe's questions are not the conversation's: an oracle of the one knows nothing of the other.
    cases += [(model, trust) for model in models for trust in trusts if (model, trust) != ("oracle", "probe")]
    rows: dict[str, Result] = {}
    for model, trust in cases:

        async def measured(model: str = model, trust: str = trust) -> Result:
            return await measure(corpus, model, trust)

        name = BASELINE if model == BASELINE else f"{model}/{trust}"
        rows[name] = await kept.run(f"{corpus.name}[{len(corpus.items)}]/{name}", measured)
    return rows


async def measure(corpus: Corpus, model: str, trust: str) -> Result:
    """Organize a conversation under one model and ask its questions."""
    stand_in = double(model)
    with temporary_root() as root, in_place_of_the_slm(stand_in):
        async with running_server(root, _settings(model, trust)) as server, AsyncClient(server.address) as client:
            await slm_ready(client)
            if trust == "probe":
                await probe_or_say(client)
            if isinstance(stand_in, Oracle):
                stand_in.reveal(corpus, client)
            organized = await organize(client, corpus.name, corpus.items)
            decisions = organized.decisions()
            votes, agree = votes_that_agree(decisions)
            pairs = togetherness(organized.cluster_of(), [one.evidence for one in corpus.questions])
            result: dict[str, float | int | str] = {
                "recall": await recall(client, corpus),
                "clusters": len(organized.clusters),
                "pairs_together": pairs.share,
                "pairs_by_chance": pairs.by_chance,
                "by_slm": routed_by(organized.memories)["slm"],
                "votes": votes,
                "weight": max((one.slm_weight for one in decisions), default=0.0),
                "superseded": sum(bool(one.superseded_by) for one in organized.memories),
                "seconds": round(organized.seconds),
            }
            if votes:
                result["votes_agree"] = agree / votes
            for most in MOST_CLUSTERS[1:]:
                result[f"recall_of_{most}"] = await recall(client, corpus, max_clusters=most)
            return result


async def recall(client: AsyncClient, corpus: Corpus, *, max_clusters: int = 0) -> float:
    """Mean share of the evidence among the first ten hits, looking into so many clusters at most (0: no bound)."""
    found = 0.0
    for one in corpus.questions:
        answer = await client.get_context(
            corpus.name, one.text, max_memories=TOP, max_clusters=max_clusters, slm_use=pb.SLM_USE_NEVER
        )
        hits = {hit.memory.memory_id for hit in answer.memories.hits}
        found += len(hits.intersection(one.evidence)) / len(one.evidence)
    return found / len(corpus.questions)


def _settings(model: str, trust: str) -> dict[str, object]:
    if model == BASELINE:
        return {"models.slm": "", "organize.trust": trust}
    # A double takes the place of whatever model the settings name. What is trusted writes, too.
    settings: dict[str, object] = {
        "organize.trust": trust,
        "organize.probe_auto": False,
        "organize.slm_behind_s": 86_400.0,
    }
    if double(model) is None:
        settings["models.slm"] = model
    if trust == "full":
        settings["organize.annotate"] = "slm"
    return settings


def _verdict(name: str, points: Sequence[float]) -> str:
    model, _, trust = name.partition("/")
    worst = max(points)
    if model == "oracle":
        gain = -sum(points) / len(points)
        met = "met" if gain >= _GAIN else "missed"
        return f"{name}: gains {gain:.1f} points of recall@{TOP} (goal at least {_GAIN:g}: {met})"
    met = "met" if worst <= _GOALS[trust] else "missed"
    return f"{name}: costs at most {worst:.1f} points of recall@{TOP} (goal at most {_GOALS[trust]:g}: {met})"
