"""What the rules of the contract say about a message, as field paths and sentences.

Most rules stand in the schema and are checked by `protovalidate`. Some are checked here, because
the schema cannot say them well, or not as cheaply:

- numbers of an embedding: a rule for each number took 25 µs for 384 of them, one pass in numpy takes 4;
- nanoseconds of times: the schema's time rules look at the instant and accept 2,000,000,000 nanoseconds,
  which no later conversion does;
- a memory that supersedes itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from protovalidate import EvaluationError, FieldPathPb, Validator, Violation

from clag_server.contract.patterns import in_words
from clag_server.contract.pool import checked_alone
from clag_server.types.errors import FieldViolation

MAX_VIOLATIONS: Final = 16
"""Violations reported of one message: details of an error must fit in 4 KiB."""

MAX_SHOWN_CHARACTERS: Final = 64
"""Length at which a map key or value of the caller's is cut in a message."""

_NUL_RULE: Final = "string.not_contains"
_NANOS_PER_SECOND: Final = 1_000_000_000
_TIMES: Final = frozenset({"google.protobuf.Timestamp", "google.protobuf.Duration"})
_EMBEDDING: Final = "embedding"
_MEMORY_INPUT: Final = "clag.v1.MemoryInput"

_validator = Validator()


def violations(message: Message, *, prefix: str = "", embeddings: bool = True) -> tuple[FieldViolation, ...]:
    """Check a message against the rules of the contract.

    Args:
        message: a message of a class from `pool.strict_class`. One of a generated class has no rules and
            passes all of those that stand in the schema.
        prefix: put before each path, e.g. "memory." for the field of a request.
        embeddings: whether the numbers of embeddings are checked; a caller that converts them anyway asks
            `embedding_violation` where the conversion meets something odd, and saves a pass.

    Returns:
        What is wrong, at most `MAX_VIOLATIONS`, in the order of the fields; empty when nothing is.
        Paths look like `tags[2]` or `attributes["x"].double_value`.
    """
    try:
        broken = _validator.collect_violations(message)
    except EvaluationError as error:
        # A rule met a value that it cannot compute with, e.g. an instant beyond the year 9999.
        return (FieldViolation(prefix.rstrip("."), f"breaks a rule: {shown(str(error))}"),)
    found = [_described(violation, prefix) for violation in broken[:MAX_VIOLATIONS]]
    found += _own_rules(message, prefix, embeddings=embeddings)
    return tuple(found[:MAX_VIOLATIONS])


def embedding_violation(values: Sequence[float], *, field: str) -> FieldViolation | None:
    """Check the numbers of an embedding; its length is the namespace's business.

    Args:
        values: the numbers, any count.
        field: the path to name.

    Returns:
        None when all are finite and not all are zero, or when there are none.
    """
    if not values:
        return None
    array = np.asarray(values, dtype=np.float32)
    finite = np.isfinite(array)
    if finite.all() and array.any():
        return None
    unfit = np.flatnonzero(~finite)
    if unfit.size:
        index = int(unfit[0])
        return FieldViolation(f"{field}[{index}]", f"must be a finite number, is {float(array[index])}")
    if not array.any():
        return FieldViolation(field, "must not be all zero")
    return None


def shown(text: str) -> str:
    """Make a caller's text fit to stand in an error message: one line, printable, not long."""
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    cut = escaped if len(escaped) <= MAX_SHOWN_CHARACTERS else escaped[:MAX_SHOWN_CHARACTERS] + "…"
    return cut.encode("utf-8", "backslashreplace").decode("utf-8")


def key_path(field: str, key: str) -> str:
    """Return the path of a map entry, e.g. `attributes["x"]`."""
    return f'{field}["{shown(key)}"]'


def _described(violation: Violation, prefix: str) -> FieldViolation:
    found = violation.proto
    sentence = "must not contain the NUL character" if found.rule_id == _NUL_RULE else found.message
    sentence = in_words(sentence)
    if found.for_key:
        sentence = f"the key {sentence}"
    path = _path(found.field) if found.field is not None else ""
    return FieldViolation(prefix + path if path else prefix.rstrip("."), sentence or found.rule_id)


def _path(path: FieldPathPb) -> str:
    parts: list[str] = []
    for element in path.elements:
        name = element.field_name
        subscript = element.subscript
        if subscript is None:
            parts.append(name)
        elif subscript.field == "index":
            parts.append(f"{name}[{subscript.value}]")
        else:
            parts.append(key_path(name, str(subscript.value)))
    return ".".join(parts)


class _Plan(NamedTuple):
    """Which fields of a message type our own rules look at, so that most types cost one look-up."""

    embeddings: tuple[str, ...]
    times: tuple[str, ...]
    supersedes: bool
    nested: tuple[FieldDescriptor, ...]


def _own_rules(message: Message, prefix: str, *, embeddings: bool) -> Iterator[FieldViolation]:
    plan = _plan(message.DESCRIPTOR)
    for name in plan.embeddings if embeddings else ():
        wrong = embedding_violation(getattr(message, name), field=prefix + name)
        if wrong is not None:
            yield wrong
    for name in plan.times:
        if message.HasField(name):
            nanos = getattr(message, name).nanos
            if not -_NANOS_PER_SECOND < nanos < _NANOS_PER_SECOND:
                yield FieldViolation(f"{prefix}{name}.nanos", f"must be less than a second, is {nanos}")
    if plan.supersedes:
        found: Any = message
        if found.memory_id and found.memory_id in found.supersedes:
            yield FieldViolation(f"{prefix}supersedes", "must not name the memory itself")
    for field in plan.nested:
        for path, child in _children(message, field):
            yield from _own_rules(child, f"{prefix}{path}.", embeddings=embeddings)


def _children(message: Message, field: FieldDescriptor) -> Iterable[tuple[str, Message]]:
    value = getattr(message, field.name)
    if field.is_repeated:
        return [(f"{field.name}[{index}]", child) for index, child in enumerate(value)]
    return [(field.name, value)] if message.HasField(field.name) else []


@cache
def _plan(descriptor: Descriptor) -> _Plan:
    embeddings = tuple(field.name for field in descriptor.fields if field.name == _EMBEDDING)
    times = tuple(field.name for field in descriptor.fields if _type_name(field) in _TIMES)
    nested = tuple(field for field in descriptor.fields if _checked_inside(field))
    return _Plan(embeddings, times, descriptor.full_name == _MEMORY_INPUT, nested)


def _type_name(field: FieldDescriptor) -> str:
    return "" if field.message_type is None else field.message_type.full_name


def _checked_inside(field: FieldDescriptor) -> bool:
    """Whether our own rules apply somewhere below a field that is checked together with its parent."""
    child = field.message_type
    if child is None or child.full_name in _TIMES or child.GetOptions().map_entry:
        return False
    return field.full_name not in checked_alone() and _needed(child, frozenset())


def _needed(descriptor: Descriptor, above: frozenset[str]) -> bool:
    if descriptor.full_name in above:
        return False
    inside = above | {descriptor.full_name}
    for field in descriptor.fields:
        if field.name == _EMBEDDING or _type_name(field) in _TIMES:
            return True
        child = field.message_type
        if child is not None and not child.GetOptions().map_entry and _needed(child, inside):
            return True
    return False
