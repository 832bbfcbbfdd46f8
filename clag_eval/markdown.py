"""A run's document as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

__all__ = ["markdown", "table"]

_MAIN: Final = {
    "method": "method",
    "recall@10": "recall@10",
    "ndcg@10": "nDCG@10",
    "recall@5": "recall@5",
    "precision@10": "precision@10",
    "f1@10": "F1@10",
    "hit@10": "hit@10",
    "search_space": "searched, %",
}
_COST: Final = {
    "method": "method",
    "search_space": "picked episodes, %",
    "search_space_clusters": "their clusters, %",
    "search_space_net": "safety net, %",
    "clusters": "clusters",
    "latency_p50_ms": "p50, ms",
    "latency_p95_ms": "p95, ms",
    "slm_calls": "SLM calls asking",
    "organize_slm_calls": "SLM calls organizing",
    "organize_slm_tokens": "SLM tokens organizing",
}
_ANSWERS: Final = {
    "method": "method",
    "answers": "answers",
    "answer_f1": "F1",
    "answer_bleu_1": "BLEU-1",
    "prompt_tokens": "prompt tokens",
    "refused_wrongly": "refused wrongly, %",
    "refused_rightly": "refused rightly, %",
}


def markdown(document: Mapping[str, Any], *, plots: Sequence[Path] = (), heading: str = "##") -> str:
    """Write a document.

    Args:
        document: As `report.document` made it.
        plots: Files of plots, shown after the tables; paths as the page shall name them.
        heading: What headings of the top level begin with.
    """
    run, summary = document["run"], document["summary"]
    asked = run["questions"]
    parts = [
        f"{heading} {run['data']}: {asked:,} questions on {run['memories']:,} memories in {run['pools']} pools",
        _made_with(run),
        table(summary, _MAIN),
    ]
    compared = [key for key in summary[-1] if "_over_" in key] if summary else []
    if compared:
        parts += [f"Difference to `{run['baseline']}` in points, with the 95% interval of a paired bootstrap:"]
        parts += [table([_differences(row) for row in summary if _differences(row)], None)]
    budgets = sorted(int(key.partition("@")[2]) for key in summary[0] if key.startswith("evidence@"))
    shown = [budget for budget in budgets if all(f"evidence@{budget}" in row for row in summary)]
    parts += ["Evidence in a context of so many tokens, in % of it:"]
    parts += [table(summary, {"method": "method", **{f"evidence@{one}": f"{one:,}" for one in shown}})]
    kinds = list(dict.fromkeys(row["category"] for row in document["categories"]))
    if len(kinds) > 1:
        parts += ["recall@10 / nDCG@10 by category (and its number of questions):", _by_category(document, kinds)]
    cost = {key: title for key, title in _COST.items() if run["slm"] or "slm" not in key}
    parts += ["How much was looked at, and what it cost:", table(summary, cost)]
    if any("answer_f1" in row for row in summary):
        parts += [f"Answers of {run['slm']}, each from what its method found:", table(summary, _ANSWERS)]
    parts += [f"![{path.stem}]({path})" for path in plots]
    parts += [f"- {note}" for note in run["notes"]]
    return "\n\n".join(parts) + "\n"


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str] | None) -> str:
    """Write rows as a table; `columns` maps keys to headings, None shows all keys."""
    shown = columns or {key: key for row in rows for key in row}
    kept = {key: title for key, title in shown.items() if any(row.get(key) is not None for row in rows)}
    lines = ["| " + " | ".join(kept.values()) + " |", "|" + "---|" * len(kept)]
    lines += ["| " + " | ".join(_cell(row.get(key)) for key in kept) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case float():
            return f"{value:.1f}"
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def _made_with(run: Mapping[str, Any]) -> str:
    asked = f"language model {run['slm']}" if run["slm"] else "no language model"
    order = f", arrival order shuffled (seed {run['shuffle']})" if run.get("shuffle") is not None else ""
    return (
        f"Embedder {run['embedder']}, {asked}, `--slm {run['slm_use']}`{order}; server {run['server_version']}; "
        f"{run['left_out']} questions of the data have no evidence and are left out; "
        f"it took {run['seconds'] / 60:.0f} minutes."
    )


def _differences(row: Mapping[str, Any]) -> dict[str, str]:
    gaps = {
        key.partition("_over_")[0]: f"{gap['mean']:+.1f} [{gap['low']:+.1f}, {gap['high']:+.1f}]"
        for key, gap in row.items()
        if "_over_" in key
    }
    return {"method": str(row["method"]), **gaps} if gaps else {}


def _by_category(document: Mapping[str, Any], kinds: Sequence[str]) -> str:
    found = {(row["method"], row["category"]): row for row in document["categories"]}
    counts = {row["category"]: row["questions"] for row in document["categories"]}
    rows = []
    for method in dict.fromkeys(row["method"] for row in document["categories"]):
        cells = {"method": method}
        for kind in kinds:
            row = found.get((method, kind))
            cells[f"{kind} ({counts[kind]:,})"] = f"{row['recall@10']:.1f} / {row['ndcg@10']:.1f}" if row else ""
        rows.append(cells)
    return table(rows, None)
