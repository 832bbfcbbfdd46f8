"""A typed filter tree becomes a SQL condition over `memories`. Every value and every key is a bound parameter.

Meaning, as `clag.v1.FilterOperator` says (a test compares it with plain Python over generated trees):
- A comparison is true or false, never unknown, so `Not` is the plain opposite. Values of another type never match,
  by no operator; integers and doubles are one type, a bool is not a number.
- Numbers and strings are ordered (strings by code point); bools and lists know EQ, NE and IN only.
- A field that is not set (an empty string, for built-in ones) matches NE and nothing else.
- A string compared with a list: EQ and CONTAINS ask for an element, NE for the absence of it. CONTAINS on a string
  asks for a part of it; case counts. A list compared with a list is compared whole.
- IN is EQ to any value; on attributes a string also stands for the number that is written in it.
- TAG is a list: the caller's tags and the evolved ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import pydantic_core
import sqlalchemy as sa

from clag_server.catalog.rows import NO_ITEMS, strings_to_json, to_json
from clag_server.catalog.schema import memories
from clag_server.types.errors import FieldViolation, InvalidField
from clag_server.types.filters import And, Comparison, Filter, FilterField, Not, Operator, Or
from clag_server.types.memory import AttributeValue

MAX_NODES: Final = 256
"""Nodes of a tree, elements of IN included: SQLite refuses 1,000 levels, and a node takes up to three.

The contract allows half as many, and half the depth below; these bounds only keep SQLite's errors away.
"""

MAX_DEPTH: Final = 16
"""Levels of a tree: SQLite's parser gives up at some thirty nested conditions."""

Condition = sa.ColumnElement[bool]
_Scalar = str | int | float | bool

_TEXTS: Final[Mapping[FilterField, sa.ColumnElement[str]]] = {
    FilterField.MEMORY_ID: memories.c.memory_id,
    FilterField.SESSION_ID: memories.c.session_id,
    FilterField.SPEAKER: memories.c.speaker,
    FilterField.TASK: memories.c.task,
    FilterField.TEXT: memories.c.text,
    FilterField.SUPERSEDED_BY: memories.c.superseded_by,
}
_NUMBERS: Final[Mapping[FilterField, sa.ColumnElement[Any]]] = {
    FilterField.CLUSTER_ID: memories.c.cluster,
    FilterField.EPISODE_ID: memories.c.episode,
    FilterField.KIND: memories.c.kind,
    FilterField.STATE: memories.c.state,
    FilterField.EVENT_TIME: memories.c.event_time_ns,
    FilterField.CREATE_TIME: memories.c.create_time_ns,
    FilterField.UPDATE_TIME: memories.c.update_time_ns,
    FilterField.EXPIRE_TIME: memories.c.expire_time_ns,
    FilterField.IMPORTANCE: memories.c.importance,
    FilterField.CONFIDENCE: memories.c.confidence,
}
_ORDER: Final[Mapping[Operator, Callable[[Any, Any], Condition]]] = {
    Operator.EQ: lambda a, b: a == b,
    Operator.NE: lambda a, b: a != b,
    Operator.LT: lambda a, b: a < b,
    Operator.LE: lambda a, b: a <= b,
    Operator.GT: lambda a, b: a > b,
    Operator.GE: lambda a, b: a >= b,
}


def condition(where: Filter) -> Condition:
    """Return the condition for a tree.

    Raises:
        InvalidField: the tree has more than `MAX_NODES` nodes, or is deeper than `MAX_DEPTH`.
    """
    if (depth := _depth(where)) > MAX_DEPTH:
        raise InvalidField(FieldViolation("filter", f"is {depth} levels deep, the limit is {MAX_DEPTH}"))
    if (nodes := _size(where)) > MAX_NODES:
        raise InvalidField(FieldViolation("filter", f"has {nodes} parts, the limit is {MAX_NODES}"))
    return _condition(where)


def _depth(where: Filter) -> int:
    if isinstance(where, And | Or):
        return 1 + max((_depth(part) for part in where.parts), default=0)
    return 1 + _depth(where.part) if isinstance(where, Not) else 1


def _size(where: Filter) -> int:
    if isinstance(where, And | Or):
        return 1 + sum(_size(part) for part in where.parts)
    if isinstance(where, Not):
        return 1 + _size(where.part)
    return len(where.value) if isinstance(where.value, tuple) else 1


def _condition(where: Filter) -> Condition:
    if isinstance(where, And):
        return sa.and_(sa.true(), *(_condition(part) for part in where.parts))
    if isinstance(where, Or):
        return sa.or_(sa.false(), *(_condition(part) for part in where.parts))
    if isinstance(where, Not):
        return sa.not_(_condition(where.part))
    if where.field is None:
        return _attribute(where)
    if where.field is FilterField.TAG:
        return _tags(where)
    return _field(where, _TEXTS.get(where.field), _NUMBERS.get(where.field))


def _field(
    where: Comparison, text: sa.ColumnElement[str] | None, number: sa.ColumnElement[Any] | None
) -> Condition:
    """Compare a built-in column: a text (unset when empty) or a number (unset when NULL)."""
    if text is not None:
        if where.operator is Operator.EXISTS:
            return text != ""
        if where.operator is Operator.NE:
            return sa.or_(text == "", text != where.value) if isinstance(where.value, str) else sa.false()
        return sa.and_(text != "", _any(where, lambda op, v: _text(op, text, v)))
    if number is None:
        raise InvalidField(FieldViolation("filter.field", f"{where.field} cannot be compared"))
    if where.operator is Operator.EXISTS:
        return number.is_not(None)
    compared = _any(where, lambda op, v: _number(op, number, v, in_json=False))
    if where.operator is Operator.NE and _is_number(where.value):
        return sa.or_(number.is_(None), compared)
    return sa.and_(number.is_not(None), compared)


def _tags(where: Comparison) -> Condition:
    if where.operator is Operator.EXISTS:
        return sa.or_(memories.c.tags != NO_ITEMS, memories.c.evolved_tags != NO_ITEMS)
    if where.operator is Operator.NE:
        return sa.not_(_has_tag(lambda tag: tag == where.value)) if isinstance(where.value, str) else sa.false()
    if where.operator is Operator.CONTAINS:
        return _has_tag(lambda tag: tag == where.value) if isinstance(where.value, str) else sa.false()
    return _has_tag(lambda tag: _any(where, lambda op, v: _text(op, tag, v)))


def _has_tag(test: Callable[[sa.ColumnElement[Any]], Condition]) -> Condition:
    return sa.or_(*(_has_element(column, test) for column in (memories.c.tags, memories.c.evolved_tags)))


def _has_element(array: sa.ColumnElement[Any], test: Callable[[sa.ColumnElement[Any]], Condition]) -> Condition:
    """Any element of a JSON array of strings passes."""
    each = sa.func.json_each(array).table_valued("value")
    return sa.exists(sa.select(1).select_from(each).where(test(each.c.value)))


def _attribute(where: Comparison) -> Condition:
    if where.operator is Operator.EXISTS:
        return _has_attribute(where.attribute, lambda *_: sa.true())
    compared = _has_attribute(
        where.attribute, lambda kind, column: _any(where, lambda op, v: _json(op, kind, column, v), written=True)
    )
    if where.operator is Operator.NE and where.value is not None:
        return sa.or_(sa.not_(_has_attribute(where.attribute, lambda *_: sa.true())), compared)
    return compared


def _has_attribute(key: str, test: Callable[[Any, sa.ColumnElement[Any]], Condition]) -> Condition:
    each = sa.func.json_each(memories.c.attributes).table_valued("key", "value", "type")
    return sa.exists(sa.select(1).select_from(each).where(each.c.key == key, test(each.c.type, each.c.value)))


def _any(
    where: Comparison, test: Callable[[Operator, AttributeValue], Condition], *, written: bool = False
) -> Condition:
    """Apply a comparison's operator: IN is EQ to any of its values; a comparison without a value is false."""
    if where.operator is Operator.IN:
        values = list(where.value) if isinstance(where.value, tuple) else []
        if written:
            values += [number for value in values if (number := written_number(value)) is not None]
        return sa.or_(sa.false(), *(test(Operator.EQ, value) for value in values))
    if where.value is None:
        return sa.false()
    # A tuple is a list of strings here; only IN takes a tuple of other values.
    return test(where.operator, where.value)  # type: ignore[arg-type]


def written_number(value: AttributeValue) -> int | float | None:
    """Return the finite number that a string is, in JSON's notation; None for any other value."""
    if not isinstance(value, str):
        return None
    try:
        number = pydantic_core.from_json(value, allow_inf_nan=False)
    except ValueError:
        return None
    return number if isinstance(number, int | float) and _is_number(number) else None


def _json(op: Operator, kind: Any, column: sa.ColumnElement[Any], value: AttributeValue) -> Condition:
    """Compare a value of `json_each` with its type in `kind`."""
    if isinstance(value, bool):
        if op not in {Operator.EQ, Operator.NE}:
            return sa.false()
        wanted = value if op is Operator.EQ else not value
        return _typed(kind, "true" if wanted else "false", test=sa.true())
    if isinstance(value, int | float):
        return _typed(kind, "integer", "real", test=_number(op, column, value, in_json=True))
    if isinstance(value, str):
        return _json_text(op, kind, column, value)
    if op in {Operator.EQ, Operator.NE}:
        return _typed(kind, "array", test=_ORDER[op](column, strings_to_json(value)))
    return sa.false()


def _json_text(op: Operator, kind: Any, column: sa.ColumnElement[Any], value: str) -> Condition:
    """Compare a string with a string or with the elements of a list."""
    if op not in {Operator.EQ, Operator.NE, Operator.CONTAINS}:
        return _typed(kind, "text", test=_text(op, column, value))
    found = _has_element(column, lambda element: element == value)
    # CASE keeps SQLite from reading a plain string as JSON, which is an error.
    return sa.case(
        (kind == "text", _text(op, column, value)),
        (kind == "array", sa.not_(found) if op is Operator.NE else found),
        else_=sa.false(),
    )


def _typed(kind: Any, *names: str, test: Condition) -> Condition:
    return sa.and_(kind.in_(names), test)


def _text(op: Operator, column: sa.ColumnElement[Any], value: AttributeValue) -> Condition:
    if not isinstance(value, str):
        return sa.false()
    if op is Operator.CONTAINS:
        return sa.func.instr(column, value) > 0
    return _ORDER[op](column, value)


def _number(op: Operator, column: sa.ColumnElement[Any], value: AttributeValue, *, in_json: bool) -> Condition:
    """Compare a number; a JSON double with a double that SQLite read from JSON as well.

    SQLite's reading of decimals may differ from Python's in the last bit: both sides go the same way.
    """
    if not isinstance(value, int | float) or not _is_number(value) or op not in _ORDER:
        return sa.false()
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            value = math.inf if value > 0 else -math.inf  # beyond any stored number
        return _ORDER[op](column, sa.bindparam(None, value, type_=sa.types.NullType()))
    bound = sa.bindparam(None, value, type_=sa.types.NullType())
    if in_json and math.isfinite(value):
        return _ORDER[op](column, sa.func.json_extract(to_json(value), "$"))
    return _ORDER[op](column, bound)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
