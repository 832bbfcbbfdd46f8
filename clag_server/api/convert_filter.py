"""The filter tree of the contract to the domain's, checked for depth, size and types of operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
from clag.v1 import types_pb2

from clag_server.api.convert_values import attribute_from, cluster_number, episode_number, time_from
from clag_server.api.limits import MAX_FILTER_DEPTH, MAX_FILTER_NODES
from clag_server.types.errors import FieldViolation, InvalidField
from clag_server.types.filters import And, Comparison, Filter, FilterField, Not, Operator, Or
from clag_server.types.memory import AttributeValue

__all__ = ["filter_from"]

_FIELD_PREFIX = "FILTER_FIELD_"
_OPERATOR_PREFIX = "FILTER_OPERATOR_"

UNKNOWN_NUMBER = -1
"""Number that no cluster and no episode has: a filter on an id that cannot exist matches nothing."""


class _Kind(Enum):
    STRING = auto()
    NUMBER = auto()
    FLOAT = auto()
    TIME = auto()
    CLUSTER = auto()
    EPISODE = auto()


_KINDS: Mapping[FilterField, _Kind] = {
    FilterField.EVENT_TIME: _Kind.TIME,
    FilterField.CREATE_TIME: _Kind.TIME,
    FilterField.UPDATE_TIME: _Kind.TIME,
    FilterField.EXPIRE_TIME: _Kind.TIME,
    FilterField.IMPORTANCE: _Kind.FLOAT,
    FilterField.CONFIDENCE: _Kind.FLOAT,
    FilterField.KIND: _Kind.NUMBER,
    FilterField.STATE: _Kind.NUMBER,
    FilterField.CLUSTER_ID: _Kind.CLUSTER,
    FilterField.EPISODE_ID: _Kind.EPISODE,
}
"""What each built-in field compares with; those not named here compare with strings."""


def filter_from(message: types_pb2.Filter, *, field: str = "filter") -> Filter:
    """Convert a filter that passed the schema's rules.

    Args:
        message: The tree.
        field: Its path in the request, for errors.

    Raises:
        InvalidField: Too deep, too large, an operand of the wrong type, an operator that the field has not.
    """
    return _Walk().convert(message, field, depth=1)


@dataclass(slots=True)
class _Walk:
    """Counts nodes on the way down."""

    nodes: int = 0

    def convert(self, message: types_pb2.Filter, path: str, *, depth: int) -> Filter:
        self.nodes += 1
        if depth > MAX_FILTER_DEPTH:
            raise _invalid(path, f"the filter is more than {MAX_FILTER_DEPTH} levels deep")
        if self.nodes > MAX_FILTER_NODES:
            raise _invalid(path, f"the filter has more than {MAX_FILTER_NODES} nodes")
        match message.WhichOneof("node"):
            case "all":
                return And(self._parts(message.all, f"{path}.all", depth))
            case "any":
                return Or(self._parts(message.any, f"{path}.any", depth))
            case "negation":
                return Not(self.convert(message.negation, f"{path}.negation", depth=depth + 1))
            case _:
                return _comparison(message.comparison, f"{path}.comparison")

    def _parts(self, message: types_pb2.FilterList, path: str, depth: int) -> tuple[Filter, ...]:
        return tuple(
            self.convert(part, f"{path}.filters[{index}]", depth=depth + 1)
            for index, part in enumerate(message.filters)
        )


def _comparison(message: types_pb2.Comparison, path: str) -> Comparison:
    operator = Operator[types_pb2.FilterOperator.Name(message.op).removeprefix(_OPERATOR_PREFIX)]
    operand = message.WhichOneof("operand")
    if (operand is None) != (operator is Operator.EXISTS):
        need = "takes no value" if operator is Operator.EXISTS else "needs a value"
        raise _invalid(path, f"{operator.name} {need}")
    if message.WhichOneof("target") == "attribute":
        if operand == "time_value":
            raise _invalid(f"{path}.time_value", "attributes hold no times; compare with a value")
        value = None if operand is None else attribute_from(message.value)
        return Comparison(None, message.attribute, operator, _list_for(operator, value, f"{path}.value"))
    field = FilterField[types_pb2.FilterField.Name(message.field).removeprefix(_FIELD_PREFIX)]
    if field is FilterField.TEXT and operator is not Operator.CONTAINS:
        raise _invalid(f"{path}.op", "TEXT has CONTAINS only")
    return Comparison(field, "", operator, _operand(message, field, operator, path))


def _operand(
    message: types_pb2.Comparison, field: FilterField, operator: Operator, path: str
) -> AttributeValue | tuple[AttributeValue, ...] | None:
    """The value that a built-in field is compared with, of the field's type."""
    if operator is Operator.EXISTS:
        return None
    kind = _KINDS.get(field, _Kind.STRING)
    if (message.WhichOneof("operand") == "time_value") != (kind is _Kind.TIME):
        raise _invalid(path, f"{field.name} compares with {'a time_value' if kind is _Kind.TIME else 'a value'}")
    if kind is _Kind.TIME:
        if operator in {Operator.IN, Operator.CONTAINS}:
            raise _invalid(f"{path}.op", f"{field.name} has no {operator.name}")
        return time_from(message.time_value)
    value = _list_for(operator, attribute_from(message.value), f"{path}.value")
    values = value if isinstance(value, tuple) else (value,)
    typed = tuple(_typed(part, kind, field.name, f"{path}.value") for part in values)
    return typed if isinstance(value, tuple) else typed[0]


def _list_for(operator: Operator, value: AttributeValue | None, path: str) -> AttributeValue | None:
    if operator is Operator.IN and not isinstance(value, tuple):
        raise _invalid(path, "IN compares with a string_list")
    return value


def _typed(value: AttributeValue | None, kind: _Kind, name: str, path: str) -> AttributeValue:
    if kind is _Kind.NUMBER:
        return _number(value, name, path)
    if kind is _Kind.FLOAT:
        # Such fields travel as 32-bit floats: 0.1 must equal the stored 0.1, which is 0.100000001490116.
        return float(np.float32(_number(value, name, path)))
    if not isinstance(value, str):
        raise _invalid(path, f"{name} compares with a string")
    if kind is _Kind.STRING:
        return value
    number = cluster_number(value) if kind is _Kind.CLUSTER else episode_number(value)
    return UNKNOWN_NUMBER if number is None else number


def _number(value: AttributeValue | None, name: str, path: str) -> int | float:
    """A number; the elements of IN's list are numbers written as strings."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            return int(value) if value.strip().lstrip("+-").isdigit() else float(value)
        except ValueError:
            pass
    raise _invalid(path, f"{name} compares with a number")


def _invalid(path: str, description: str) -> InvalidField:
    return InvalidField(FieldViolation(path, description))
