"""What changed between two runs, method by method, and whether that is more than chance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from clag_eval.data import DataError
from clag_eval.intervals import paired_difference
from clag_eval.markdown import table

__all__ = ["compare"]

_SCORES: Final = {"recall@10": "recall", "ndcg@10": "ndcg"}
_FIGURES: Final = ("search_space", "latency_p50_ms", "latency_p95_ms", "answer_f1", "answer_bleu_1")


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """Compare two documents of the tool, over the questions that both have.

    Returns:
        A table, and its rows.

    Raises:
        DataError: They have no method, or no question of one, in common.
    """
    old = {row["method"]: row for row in before["summary"]}
    new = {row["method"]: row for row in after["summary"]}
    rows = [_row(name, before, after, old[name], new[name]) for name in new if name in old]
    if not rows:
        raise DataError("the two runs have no method in common")
    return table([_shown(row) for row in rows], None), rows


def _row(
    name: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    old: Mapping[str, Any],
    new: Mapping[str, Any],
) -> dict[str, Any]:
    theirs, ours = _scores(before, name), _scores(after, name)
    both = sorted(ours.keys() & theirs.keys())
    if not both:
        raise DataError(f"the two runs have no question of {name} in common")
    row: dict[str, Any] = {"method": name, "questions": len(both)}
    for shown, key in _SCORES.items():
        gap = paired_difference([100 * ours[one][key] for one in both], [100 * theirs[one][key] for one in both])
        row[shown] = {"mean": gap.mean, "low": gap.low, "high": gap.high, "sure": gap.sure}
    for key in _FIGURES:
        if old.get(key) is not None and new.get(key) is not None:
            row[key] = new[key] - old[key]
    return row


def _scores(document: Mapping[str, Any], method: str) -> dict[tuple[str, str], Mapping[str, float]]:
    return {(row["pool"], row["question"]): row["scores"] for row in document["rows"] if row["method"] == method}


def _shown(row: Mapping[str, Any]) -> dict[str, str]:
    shown = {"method": str(row["method"]), "questions": f"{row['questions']:,}"}
    for key, value in row.items():
        if isinstance(value, dict):
            sure = " *" if value["sure"] else ""
            shown[key] = f"{value['mean']:+.2f} [{value['low']:+.2f}, {value['high']:+.2f}]{sure}"
        elif key in _FIGURES:
            shown[key] = f"{value:+.2f}"
    return shown
