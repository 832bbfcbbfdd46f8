"""Memories that cannot both hold: which of two gives way, what can be found without a model, what to ask about it.

Nothing is deleted for a contradiction. The newer memory takes the place of the older one of the same speaker
(`superseded_by`); the older one's confidence falls as long as the newer one is there; both are returned with the
conflict, and with a question that the agent can ask.
"""

from __future__ import annotations

from datetime import UTC, datetime

from clag_server.memory.stating import stated
from clag_server.types.memory import Memory, MemoryKind

_QUOTED_CHARACTERS = 120


def is_newer(one: Memory, other: Memory) -> bool:
    """Return whether a memory is about a later time than another (of one time: stored later)."""
    return (one.event_time_ns, one.key) > (other.event_time_ns, other.key)


def gives_way(older: Memory, newer: Memory) -> bool:
    """Return whether a contradicted memory is replaced: the same speaker says otherwise, nothing replaced it yet.

    What another speaker says otherwise stays a conflict of two memories that both stand.
    """
    return older.speaker == newer.speaker and not older.superseded_by and newer.superseded_by != older.memory_id


def other_value(one: Memory, other: Memory) -> str | None:
    """Return why two facts contradict each other, None where they do not plainly.

    Conservative on purpose, for a wrong one hides a memory that holds: only facts of one speaker (observations and
    readings change all the time without contradicting each other) that say the same up to their last word, where
    that is a number or a code in both, and that say it of one thing (`memory.stating`): "the door code is 1234" and
    "... is 5678", but not "keys for room 12" and "keys for room 14". Another last word need not contradict
    ("allergic to nuts", "to milk"), and what differs before the end is mostly another subject ("the shed", "the
    barn").
    """
    if one.kind is not MemoryKind.FACT or other.kind is not MemoryKind.FACT or one.speaker != other.speaker:
        return None
    mine, theirs = stated(one.text), stated(other.text)
    if mine is None or theirs is None or mine.of != theirs.of or mine.value == theirs.value:
        return None
    return f"the same statement with another value: {mine.value} and {theirs.value}"


def clarifying_question(newer: Memory, older: Memory) -> str:
    """Return a question that would settle a conflict, in the memories' own words with their days."""
    return f"Which holds now: {_quoted(newer)} or {_quoted(older)}?"


def _quoted(memory: Memory) -> str:
    line = " ".join(memory.text.split())
    text = line if len(line) <= _QUOTED_CHARACTERS else f"{line[: _QUOTED_CHARACTERS - 1].rstrip()}…"
    day = datetime.fromtimestamp(memory.event_time_ns / 1e9, tz=UTC).date().isoformat()
    speaker = f"{memory.speaker}, " if memory.speaker else ""
    return f"“{text}” ({speaker}{day})"
