"""Texts to measure with: the example stream, repeated with a number so that no text is the same twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "warehouse_robot"


def example_lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLE / "stream.jsonl").read_text("utf-8").splitlines()]


def questions() -> list[str]:
    lines = (EXAMPLE / "questions.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["question"] for line in lines]


def repeated(count: int) -> Iterator[tuple[str, str, str]]:
    """Yield `count` (text, speaker, session)."""
    lines = example_lines()
    for i in range(count):
        line = lines[i % len(lines)]
        round_ = i // len(lines)
        suffix = f" (round {round_})" if round_ else ""
        yield f"{line['text']}{suffix}", line.get("speaker", ""), f"{line.get('session', '')}-{round_}"
