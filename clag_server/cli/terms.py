"""The contract's names and rules in the terms of the command line: flags, keys of a line, patterns in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import click
from clag_client import FieldViolation

from clag_server.cli.filters import given_flags
from clag_server.cli.safe import shorten
from clag_server.contract.patterns import in_words

__all__ = ["in_words", "key_of", "retold"]

_PREFIXES: Final = ("open.", "edit.", "retrieve.")
"""Messages inside of requests whose fields go by their own names here."""

_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "namespace": ("namespace",),
    "stream_id": ("stream_id",),
    "etag": ("etag",),
    "query": ("question",),
    "query.text": ("question",),
    "session_id": ("session",),
    "task_hint": ("task",),
    "slm_use": ("slm",),
    "max_clusters": ("clusters",),
    "max_memories": ("memories",),
    "max_tokens": ("max_tokens",),
    "context_tokens": ("context_tokens",),
    "context_format": ("context_format",),
    "instructions": ("instructions",),
    "start_after.token": ("after",),
    "memory_id": ("memory_id", "memory_ids"),
    "memory_ids": ("memory_ids",),
    "memory.text": ("text",),
    "memory.speaker": ("speaker",),
    "memory.session_id": ("session",),
    "memory.task": ("task",),
    "memory.kind": ("kind",),
    "memory.importance": ("importance",),
    "memory.event_time": ("event_time",),
    "memory.expire_time": ("expire_time",),
    "memory.tags": ("tags",),
    "memory.attributes": ("attributes",),
    "cluster_id": ("cluster_id",),
    "cluster_ids": ("clusters",),
    "target_clusters": ("target",),
    "target_cluster_id": ("target",),
    "source_cluster_ids": ("sources",),
    "parts": ("parts",),
    "cluster.title": ("title",),
    "operation_id": ("operation_id",),
    "embedding_model": ("embedder",),
    "settings.purpose": ("purpose",),
    "settings.default_time_to_live": ("time_to_live",),
    "settings.archive_after": ("archive_after",),
    "settings.routing_unit": ("routing_unit",),
    "settings.auto_reorganize": ("auto_reorganize",),
}
"""Fields of requests, without the prefixes, and the parameters of commands that give them their values: the first
that the running command has is what its caller typed, a flag or an argument."""

_SPOKEN: Final = {"question": "the question"}
"""Parameters that nobody knows by a name."""

_KEYS: Final = {"memory_id": "id", "session_id": "session", "event_time": "time", "expire_time": "expires"}
"""Fields of a memory that have another key in a JSON line."""

_FIRST_NAME: Final = re.compile(r"\w+")
_ITEM: Final = re.compile(r"(.*)\[(\d+)\]")
_ATTRIBUTE: Final = re.compile(r'(.*)\["(.*)"\](?:\.\w+)?')
_VALUE_KIND: Final = re.compile(r"(?<=\])\.(?:(?:bool|int|double|string)_value|string_list(?:\.values)?)\b")
_FILTER_PART: Final = re.compile(r"filter\.all\.filters\[(\d+)\]\.comparison\.(?:.*\.values\[(\d+)\])?.*")
_VALUE_CHARS: Final = 40


def key_of(path: str) -> str:
    """Return the path of a memory's field as the line has it: `memory_id` is `id`, `tags[2]` stays."""
    named = _FIRST_NAME.sub(lambda name: _KEYS.get(name[0], name[0]), path, count=1)
    return _VALUE_KIND.sub("", named) if named.startswith("attributes[") else named


def retold(message: str, violations: Iterable[FieldViolation]) -> str:
    """Return a refusal of the server with every wrong field named as the caller knows it, each once."""
    for one in violations:
        told = f"{_called(one.field)}: {in_words(one.description)}"
        wrong = f"{one.field}: {one.description}"
        if wrong in message:
            message = message.replace(wrong, told, 1)
        elif one.description not in message:
            message = f"{message}; {told}" if message else told
    return message


def _called(path: str) -> str:
    """Return what the caller of the running command calls a field: a flag or an argument, with a list's value."""
    context = click.get_current_context(silent=True)
    if part := _FILTER_PART.fullmatch(path):
        return _filter_flag(context, int(part[1]), int(part[2] or 0)) or path
    attribute, item = _ATTRIBUTE.fullmatch(path), _ITEM.fullmatch(path)
    field = attribute[1] if attribute else item[1] if item else path
    for prefix in _PREFIXES:
        field = field.removeprefix(prefix)
    parameter = _parameter(context, _PARAMETERS.get(field, ()))
    if context is None or parameter is None:
        return "--namespace" if field == "namespace" else path
    label = _SPOKEN.get(parameter.name or "") or _label(parameter)
    if attribute:
        return f'{label} "{shorten(attribute[2], _VALUE_CHARS)}"'
    given = context.params.get(parameter.name or "")
    return f"{label}{_value(given, int(item[2]))}" if item else label


def _parameter(context: click.Context | None, names: tuple[str, ...]) -> click.Parameter | None:
    """Return the first of the parameters that the running command has."""
    known = {one.name: one for one in context.command.params} if context is not None else {}
    return next((known[name] for name in names if name in known), None)


def _label(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return parameter.human_readable_name.removesuffix("...")
    return max(parameter.opts, key=len)


def _filter_flag(context: click.Context | None, part: int, item: int) -> str:
    """Return the flag that a part of the filter was made of, with its value; "" where there is none."""
    given = given_flags(context.params) if context is not None else []
    if part >= len(given):
        return ""
    flag, value = given[part]
    return f"{flag}{_value(value, item)}"


def _value(given: object, item: int) -> str:
    """Return the value of a list that is at fault, to stand behind its flag."""
    if not isinstance(given, tuple) or item >= len(given):
        return ""
    return f' "{shorten(str(given[item]), _VALUE_CHARS)}"'
