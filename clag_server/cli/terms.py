"""The contract's names and rules in the terms of the command line: flags, keys of a line, patterns in words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from clag_client import FieldViolation

__all__ = ["in_words", "key_of", "retold"]

_FLAGS: Final = {
    "namespace": "--namespace",
    "open.namespace": "--namespace",
    "open.stream_id": "--stream-id",
    "query": "the question",
    "query.text": "the question",
    "session_id": "--session",
    "task_hint": "--task",
    "edit.namespace": "--namespace",
    "memory.text": "--text",
    "memory.speaker": "--speaker",
    "memory.session_id": "--session",
    "memory.task": "--task",
    "memory.event_time": "--time",
    "memory.expire_time": "--expires",
}
"""Fields of requests whose values come from flags and arguments of another name."""

_KEYS: Final = {"memory_id": "id", "session_id": "session", "event_time": "time", "expire_time": "expires"}
"""Fields of a memory that have another key in a JSON line."""

_NAME: Final = "1 to 63 of a-z 0-9 and -, the first no -"
_ID: Final = "of A-Z a-z 0-9 . _ : and -"
_PATTERNS: Final = {
    "^[a-z0-9][a-z0-9-]{0,62}$": f"must be {_NAME}",
    "^([a-z0-9][a-z0-9-]{0,62})?$": f"must be empty or {_NAME}",
    "^[A-Za-z0-9._:-]{1,128}$": f"must be 1 to 128 {_ID}",
    "^[A-Za-z0-9._:-]{0,128}$": f"must be at most 128 {_ID}",
}
"""The patterns of the contract, in words."""

_RULE: Final = re.compile(r"does not match regex pattern `([^`]*)`")
_FIRST_NAME: Final = re.compile(r"\w+")


def key_of(path: str) -> str:
    """Return the path of a memory's field as the line has it: `memory_id` is `id`, `tags[2]` stays."""
    return _FIRST_NAME.sub(lambda name: _KEYS.get(name[0], name[0]), path, count=1)


def in_words(description: str) -> str:
    """Return what is wrong with a value, with the contract's patterns in words; an unknown pattern stays."""
    return _RULE.sub(lambda rule: _PATTERNS.get(rule[1], rule[0]), description)


def retold(message: str, violations: Iterable[FieldViolation]) -> str:
    """Return a refusal of the server with every wrong field named as the caller knows it, each once."""
    for one in violations:
        told = f"{_FLAGS.get(one.field, one.field)}: {in_words(one.description)}"
        wrong = f"{one.field}: {one.description}"
        if wrong in message:
            message = message.replace(wrong, told, 1)
        elif one.description not in message:
            message = f"{message}; {told}" if message else told
    return message
