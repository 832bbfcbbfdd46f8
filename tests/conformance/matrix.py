"""The matrix as people read it, and as programs do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.suite import Result, Status

__all__ = ["failed", "table", "write_json"]


def table(results: Sequence[Result]) -> str:
    """Return the matrix, rows scenarios and columns languages, and below it what failed and what was skipped."""
    languages = list(dict.fromkeys(result.language for result in results))
    scenarios = list(dict.fromkeys(result.scenario for result in results))
    cells = {(result.scenario, result.language): result.status.value for result in results}
    width = max((len(name) for name in scenarios), default=0)
    widths = [max(len(language), 7) for language in languages]
    lines = [_row("", languages, width, widths)]
    lines += [
        _row(name, [cells.get((name, language), "") for language in languages], width, widths) for name in scenarios
    ]
    for language in languages:
        counted = Counter(result.status for result in results if result.language == language)
        lines.append(
            f"{language}: " + ", ".join(f"{counted[status]} {status}" for status in Status if counted[status])
        )
    lines += _reasons(results, Status.MISSING) + _reasons(results, Status.SKIP) + _reasons(results, Status.FAIL)
    return "\n".join(line.rstrip() for line in lines)


def failed(results: Sequence[Result], *, present_only: bool) -> bool:
    """Whether a run is a failure: something failed, or is missing and was to be there."""
    bad = {Status.FAIL} if present_only else {Status.FAIL, Status.MISSING}
    return any(result.status in bad for result in results)


def write_json(results: Sequence[Result], path: Path) -> None:
    """Write all results for programs."""
    rows = [
        {
            "scenario": result.scenario,
            "language": result.language,
            "status": result.status.value,
            "reason": result.reason,
            "seconds": round(result.seconds, 3),
        }
        for result in results
    ]
    path.write_text(json.dumps({"results": rows}, indent=1) + "\n", encoding="utf-8")


def _row(name: str, cells: Sequence[str], width: int, widths: Sequence[int]) -> str:
    return "  ".join([name.ljust(width), *(cell.ljust(wide) for cell, wide in zip(cells, widths, strict=True))])


def _reasons(results: Sequence[Result], status: Status) -> list[str]:
    chosen = [result for result in results if result.status is status]
    if status is Status.FAIL:
        return [f"\nFAIL {one.language} {one.scenario}\n  {one.reason}" for one in chosen]
    # Many rows share one reason here.
    gathered = Counter((one.language, one.reason) for one in chosen)
    return [f"{status} {language}: {reason} ({count})" for (language, reason), count in gathered.items()]
