"""The contract's names and rules in the terms of the command line: flags, keys of a line, patterns in words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import click
from clag_client import FieldViolation

from clag_server.cli.safe import shorten
from clag_server.contract.patterns import in_words

__all__ = ["in_words", "key_of", "retold"]

_FLAGS: Final = {
    "open.stream_id": "--stream-id",
    "query": "the question",
    "query.text": "the question",
    "session_id": "--session",
    "task_hint": "--task",
    "memory.text": "--text",
    "memory.speaker": "--speaker",
    "memory.session_id": "--session",
    "memory.task": "--task",
    "memory.event_time": "--time",
    "memory.expire_time": "--expires",
}
"""Fields of requests whose values come from flags and arguments of another name."""

_PARAMETERS: Final = {
    "namespace": "namespace",
    "open.namespace": "namespace",
    "edit.namespace": "namespace",
    "edit.etag": "etag",
    "cluster_id": "cluster_id",
    "cluster_ids": "clusters",
    "target_clusters": "target",
    "target_cluster_id": "target",
    "source_cluster_ids": "sources",
    "memory_ids": "memory_ids",
    "cluster.title": "title",
    "operation_id": "operation_id",
    "embedding_model": "embedder",
    "settings.purpose": "purpose",
    "settings.default_time_to_live": "time_to_live",
    "settings.archive_after": "archive_after",
    "settings.routing_unit": "routing_unit",
}
"""Fields whose values are a flag of some commands and an argument of others, with the parameter's name: what the
running command calls it is what its caller typed."""

_KEYS: Final = {"memory_id": "id", "session_id": "session", "event_time": "time", "expire_time": "expires"}
"""Fields of a memory that have another key in a JSON line."""

_FIRST_NAME: Final = re.compile(r"\w+")
_ITEM: Final = re.compile(r"(.*)\[(\d+)\]")
_VALUE_CHARS: Final = 40


def key_of(path: str) -> str:
    """Return the path of a memory's field as the line has it: `memory_id` is `id`, `tags[2]` stays."""
    return _FIRST_NAME.sub(lambda name: _KEYS.get(name[0], name[0]), path, count=1)


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
    item = _ITEM.fullmatch(path)
    field = item[1] if item else path
    name = _PARAMETERS.get(field)
    if name is None:
        return _FLAGS.get(path, path)
    context = click.get_current_context(silent=True)
    known = context.command.params if context is not None else []
    parameter = next((one for one in known if one.name == name), None)
    if context is None or parameter is None:
        return f"--{name.replace('_', '-')}" if field.endswith("namespace") else path
    if isinstance(parameter, click.Argument):
        label = parameter.human_readable_name.removesuffix("...")
    else:
        label = max(parameter.opts, key=len)
    given = context.params.get(name)
    if item and isinstance(given, tuple) and int(item[2]) < len(given):
        return f'{label} "{shorten(str(given[int(item[2])]), _VALUE_CHARS)}"'
    return label
