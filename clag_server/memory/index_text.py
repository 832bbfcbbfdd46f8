"""The text under which a memory is embedded and indexed: `[date] speaker: text`.

Date and speaker raise evidence recall@10 of dense search on LoCoMo from 31 to 47 (design, section 5). Annotations
of an SLM never replace or join this text.
"""

from __future__ import annotations

import datetime

from clag_server.memory.lexical import tokens
from clag_server.types.memory import Memory

_NS = 1_000_000_000


def index_text(memory: Memory) -> str:
    """Return the text to embed and to index."""
    speaker = f"{memory.speaker}: " if memory.speaker else ""
    return f"[{spoken_date(memory.event_time_ns)}] {speaker}{memory.text}"


def lexical_text(memory: Memory) -> str:
    """Return the space-joined index tokens of the memory, its tags and keywords included."""
    return " ".join(tokens(" ".join((index_text(memory), memory.task, *memory.tags))))


def spoken_date(time_ns: int) -> str:
    """Return the UTC date as people write it, "7 May 2023"."""
    day = datetime.datetime.fromtimestamp(time_ns // _NS, tz=datetime.UTC)
    return f"{day.day} {day:%B %Y}"
