"""The JSON document of a run: how it was made, a summary row a method, categories, every question's row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from clag_eval.intervals import Difference, paired_difference
from clag_eval.metrics import mean_scores, percentile
from clag_eval.rows import Block, Row
from clag_eval.running import RunFacts

__all__ = ["BASELINES", "Document", "document", "rows_of", "summary_row"]

Document = dict[str, Any]

BASELINES: Final = ("hybrid", "rag")
"""What other methods are compared with: the first that was run."""

_COMPARED: Final = {"recall@10": "recall", "ndcg@10": "ndcg"}
_VERSION: Final = 1


def document(
    made_with: Mapping[str, Any], facts: RunFacts, blocks: Sequence[Block], *, order: Sequence[str] = ()
) -> Document:
    """Make the document.

    Args:
        made_with: What the run was told, and how long it took.
        facts: What it was measured with.
        blocks: All finished blocks.
        order: Methods in the order in which they are shown; others come after them.
    """
    place = {name: number for number, name in enumerate(order)}
    names = sorted(dict.fromkeys(block.method for block in blocks), key=lambda one: place.get(one, len(place)))
    baseline = next((name for name in BASELINES if name in names), "")
    by_method = {name: [block for block in blocks if block.method == name] for name in names}
    drawn = next((block.drawn for block in blocks if block.drawn is not None), None)
    return {
        "tool": "clag-eval",
        "version": _VERSION,
        "run": {
            **made_with,
            "embedder": facts.embedder,
            "slm": facts.slm,
            "probe": facts.probe,
            "server_version": facts.version,
            "contract_hash": facts.contract_hash,
            "baseline": baseline,
            "notes": facts.notes,
        },
        "summary": [_with_difference(name, by_method, baseline) for name in names],
        "categories": [row for name in names for row in _categories(name, by_method[name])],
        "pools": _pools(blocks),
        "cluster_map": asdict(drawn) if drawn is not None else None,
        "rows": [_stored(block, row) for block in blocks for row in block.rows],
    }


def summary_row(method: str, blocks: Sequence[Block]) -> dict[str, Any]:
    """Return the figures of one method; shares and scores in points (0 to 100), times in milliseconds."""
    rows = [row for block in blocks for row in block.rows]
    made: dict[str, Any] = {"method": method, "questions": len(rows), **mean_scores([row.scores for row in rows])}
    made["search_space"] = 100 * float(np.mean([row.picked for row in rows]))
    made["search_space_clusters"] = 100 * float(np.mean([row.clusters for row in rows]))
    made["search_space_net"] = 100 * float(np.mean([row.net for row in rows]))
    for budget in sorted(rows[0].evidence):
        made[f"evidence@{budget}"] = 100 * float(np.mean([row.evidence[budget] for row in rows]))
        made[f"tokens@{budget}"] = float(np.mean([row.tokens[budget] for row in rows]))
    times = [1000 * row.seconds for row in rows if row.seconds is not None]
    made["latency_p50_ms"] = percentile(times, 50) if times else None
    made["latency_p95_ms"] = percentile(times, 95) if times else None
    made["slm_calls"] = sum(block.slm_calls for block in blocks)
    made["slm_tokens_in"] = sum(block.slm_tokens_in for block in blocks)
    made["slm_tokens_out"] = sum(block.slm_tokens_out for block in blocks)
    made["organize_slm_calls"] = sum(block.organize_slm_calls for block in blocks)
    made["organize_slm_tokens"] = sum(block.organize_slm_tokens for block in blocks)
    made["clusters"] = sum(block.clusters for block in blocks)
    made["memories_per_s"] = sum(block.memories for block in blocks) / sum(
        max(block.organize_seconds, 1e-9) for block in blocks
    )
    return made | _answers(rows)


def _answers(rows: Sequence[Row]) -> dict[str, Any]:
    replies = [row.reply for row in rows if row.reply is not None]
    if not replies:
        return {}
    answerable = [one for one in replies if one.f1 is not None and one.bleu_1 is not None]
    unanswerable = [one for one in replies if one.f1 is None]
    made: dict[str, Any] = {
        "answers": len(answerable),
        "prompt_tokens": float(np.mean([one.prompt_tokens for one in replies])),
        "answer_tokens": float(np.mean([one.answer_tokens for one in replies])),
    }
    if answerable:
        made["answer_f1"] = 100 * float(np.mean([one.f1 for one in answerable]))
        made["answer_bleu_1"] = 100 * float(np.mean([one.bleu_1 for one in answerable]))
        made["refused_wrongly"] = 100 * float(np.mean([one.refused for one in answerable]))
    if unanswerable:
        made["refused_rightly"] = 100 * float(np.mean([one.refused for one in unanswerable]))
    return made


def _with_difference(name: str, by_method: Mapping[str, Sequence[Block]], baseline: str) -> dict[str, Any]:
    made = summary_row(name, by_method[name])
    if baseline and name != baseline:
        ours, theirs = rows_of(by_method[name]), rows_of(by_method[baseline])
        both = sorted(ours.keys() & theirs.keys())
        for shown, key in _COMPARED.items():
            gap = paired_difference(
                [100 * float(getattr(ours[one].scores, key)) for one in both],
                [100 * float(getattr(theirs[one].scores, key)) for one in both],
            )
            made[f"{shown}_over_{baseline}"] = _interval(gap)
    return made


def rows_of(blocks: Sequence[Block]) -> dict[tuple[str, str], Row]:
    """Return rows by pool and question."""
    return {(block.pool, row.question): row for block in blocks for row in block.rows}


def _interval(gap: Difference) -> dict[str, float]:
    return {"mean": gap.mean, "low": gap.low, "high": gap.high}


def _categories(name: str, blocks: Sequence[Block]) -> list[dict[str, Any]]:
    rows = [row for block in blocks for row in block.rows]
    kinds = sorted({row.category for row in rows})
    made = []
    for kind in kinds:
        inside = [row for row in rows if row.category == kind]
        made.append(
            {
                "method": name,
                "category": kind,
                "questions": len(inside),
                **mean_scores([row.scores for row in inside]),
                **_answers(inside),
            }
        )
    return made


def _pools(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    return [
        {
            "pool": block.pool,
            "method": block.method,
            "memories": block.memories,
            "questions": len(block.rows),
            "clusters": block.clusters,
            "organize_seconds": round(block.organize_seconds, 2),
            **mean_scores([row.scores for row in block.rows]),
        }
        for block in blocks
        if block.rows
    ]


def _stored(block: Block, row: Row) -> dict[str, Any]:
    return {"pool": block.pool, "method": block.method, **asdict(row)}
