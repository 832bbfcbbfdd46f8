"""Grouping: which strategy puts together what belongs together, and who decides.

Each strategy organizes the same streams on a real server. Compared are topics given by hand (the example), pairs of
memories that one question needs together (LoCoMo, which nobody labelled), and what the contract tells of decisions.
Annotations are left to word statistics: they take no part in grouping, and so the only calls of the SLM are votes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import grpc
from clag_client import AsyncClient

from bench.grouping_data import DATA_DIR, Corpus, corpora
from bench.grouping_measures import adjusted_rand, togetherness, v_measure
from bench.grouping_report import Report, Result, table
from bench.grouping_run import STEPS, Organized, organize, probed, routed_by, slm_ready, unusable, votes_that_agree
from bench.server import running_server, temporary_root

STRATEGIES: Final = ("agentic", "cosine", "kmeans")
DATA: Final = ("example", "locomo")
COLUMNS: Final = {
    "adjusted_rand": "adj. Rand",
    "v_measure": "V",
    "homogeneity": "homog.",
    "completeness": "compl.",
    "pairs_together": "pairs",
    "pairs_by_chance": "chance",
    "clusters": "clusters",
    "mean_size": "mean size",
    "largest": "largest",
    "cohesion": "cohesion",
    "by_slm": "by SLM",
    "by_vector": "vector",
    "by_deferred": "deferred",
    "votes": "votes",
    "votes_agree": "agree",
    "unusable": "unusable",
    "memories_per_s": "memories/s",
}


async def main(
    *,
    quick: bool,
    slm: str | None = None,
    strategies: Sequence[str] = STRATEGIES,
    data: Sequence[str] = DATA,
    data_dir: Path = DATA_DIR,
    limit: int = 0,
    trust: str = "probe",
    report: Path | None = None,
) -> None:
    """Organize every corpus with every strategy and print how they compare."""
    found, absent = corpora(data if not quick else data[:1], data_dir, limit=limit or (120 if quick else 0))
    for reason in absent:
        print(f"skipped {reason}", flush=True)
    kept = Report(report)
    model = slm or "default"
    for strategy in strategies:
        names = {one.name: _name(strategy, trust, model, one) for one in found}
        if any(name not in kept for name in names.values()):
            await _measure(kept, names, found, _settings(strategy, trust, slm))
    for one in found:
        rows = {strategy: kept[_name(strategy, trust, model, one)] for strategy in strategies}
        print(f"\n{one.name}: {len(one.items)} memories, trust {trust}, SLM {model}")
        print(table(rows, COLUMNS))
    print(f"\ngrouping: {len(strategies)} strategies on {len(found)} streams")


async def _measure(
    kept: Report, names: dict[str, str], found: Sequence[Corpus], settings: dict[str, object]
) -> None:
    """Organize what is not in the report yet, on one server that is probed once."""
    with temporary_root() as root:
        async with running_server(root, settings) as server, AsyncClient(server.address) as client:
            await slm_ready(client)
            if settings["models.slm"] and settings["organize.trust"] == "probe":
                await probe_or_say(client)
            for corpus in found:

                async def measured(corpus: Corpus = corpus) -> Result:
                    return facts(corpus, await organize(client, corpus.name, corpus.items))

                await kept.run(names[corpus.name], measured)


async def probe_or_say(client: AsyncClient) -> None:
    """Probe the SLM before the first memory, so that all are organized under the same trust."""
    try:
        result = await probed(client)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            raise
        print("  the probe is not served: the SLM is not trusted with anything", flush=True)
        return
    weights = ", ".join(f"{one.skill}: {one.weight:g} ({one.accuracy:.2f})" for one in result.skills)
    print(f"  probed {result.model}: weight (accuracy) by skill {weights}", flush=True)


def facts(corpus: Corpus, organized: Organized) -> Result:
    """What is reported of one run."""
    clusters = organized.cluster_of()
    sizes = [one.memory_count for one in organized.clusters]
    votes, agree = votes_that_agree(organized.decisions())
    result: dict[str, float | int | str] = {
        "memories": len(organized.memories),
        "clusters": len(sizes),
        "mean_size": sum(sizes) / len(sizes),
        "largest": max(sizes),
        "cohesion": sum(one.cohesion * one.memory_count for one in organized.clusters) / sum(sizes),
        "episodes": len(organized.decisions()),
        "votes": votes,
        "unusable": unusable(organized.stats),
        "slm_calls": organized.work.calls,
        "memories_per_s": len(organized.memories) / organized.seconds,
    }
    result |= {f"by_{who}": share for who, share in routed_by(organized.memories[:STEPS]).items()}
    if votes:
        result["votes_agree"] = agree / votes
    if corpus.topics:
        labelled = [key for key in clusters if key in corpus.topics]
        labels, grouped = [corpus.topics[key] for key in labelled], [clusters[key] for key in labelled]
        found = v_measure(labels, grouped)
        result |= {"adjusted_rand": adjusted_rand(labels, grouped), "v_measure": found.v}
        result |= {"homogeneity": found.homogeneity, "completeness": found.completeness}
    pairs = togetherness(clusters, [one.evidence for one in corpus.questions])
    if pairs.pairs:
        result |= {
            "used_pairs": pairs.pairs,
            "pairs_together": pairs.share,
            "pairs_by_chance": pairs.by_chance,
        }
    return result


def _settings(strategy: str, trust: str, slm: str | None) -> dict[str, object]:
    asks = strategy == "agentic" and trust != "none"
    settings: dict[str, object] = {
        "organize.annotate": "terms",
        "organize.trust": trust,
        # It is probed at a known moment, not beside the first memories.
        "organize.probe_auto": False,
    }
    if strategy != "agentic":
        settings["organize.strategy"] = strategy
    # The other strategies never ask: without a model they say so themselves.
    return settings | (
        {"models.slm": slm} if asks and slm else {"models.slm": "smollm2-135m-instruct" if asks else ""}
    )


def _name(strategy: str, trust: str, model: str, corpus: Corpus) -> str:
    asked = f"{trust}/{model}" if strategy == "agentic" else "no SLM"
    return f"{corpus.name}[{len(corpus.items)}]/{strategy}/{asked}"
