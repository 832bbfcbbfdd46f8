"""The text under which a memory is embedded and indexed: `[date] speaker: text`.

Date and speaker raise evidence recall@10 of dense search on LoCoMo from 31 to 47 (design, section 5). Annotations
of an SLM never replace or join this text.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from clag_server.memory.lexical import tokens
from clag_server.types.memory import Memory, NewMemory

_NS = 1_000_000_000


def index_text(memory: Memory) -> str:
    """Return the text to embed and to index."""
    return _dated(memory.text, memory.speaker, memory.event_time_ns)


def lexical_text(memory: Memory) -> str:
    """Return the space-joined index tokens of the memory, its tags and keywords included."""
    return _lexical(index_text(memory), memory.task, memory.tags)


def lexical_text_of(memory: NewMemory, *, event_time_ns: int) -> str:
    """Return the same for a memory as it will be after an update."""
    return _lexical(_dated(memory.text, memory.speaker, event_time_ns), memory.task, memory.tags)


def spoken_date(time_ns: int) -> str:
    """Return the UTC date as people write it, "7 May 2023"."""
    day = datetime.datetime.fromtimestamp(time_ns // _NS, tz=datetime.UTC)
    return f"{day.day} {day:%B %Y}"


def _dated(text: str, speaker: str, event_time_ns: int) -> str:
    return (
        f"[{spoken_date(event_time_ns)}] {speaker}: {text}" if speaker else f"[{spoken_date(event_time_ns)}] {text}"
    )


def _lexical(text: str, task: str, tags: Sequence[str]) -> str:
    return " ".join(tokens(" ".join((text, task, *tags))))
