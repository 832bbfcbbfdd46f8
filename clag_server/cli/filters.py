"""Flags that say which memories, and the filter of the contract that they make."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import click
from clag.v1 import types_pb2
from google.protobuf.timestamp_pb2 import Timestamp

__all__ = ["Instant", "filter_options", "given_flags"]

_LISTS: Final = (
    ("--session", types_pb2.FILTER_FIELD_SESSION_ID, "Of this session."),
    ("--speaker", types_pb2.FILTER_FIELD_SPEAKER, "Of this speaker."),
    ("--tag", types_pb2.FILTER_FIELD_TAG, "With this tag."),
    ("--cluster", types_pb2.FILTER_FIELD_CLUSTER_ID, "In this cluster."),
)
_TIMES: Final = (
    ("--before", types_pb2.FILTER_OPERATOR_LT, "Happened before this time."),
    ("--since", types_pb2.FILTER_OPERATOR_GE, "Happened at this time or later."),
)


class Instant(click.ParamType[Timestamp]):
    """A time: a date, or a date and time with an offset; UTC where there is none."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Timestamp:
        """Read an ISO 8601 time."""
        if isinstance(value, Timestamp):
            return value
        try:
            moment = datetime.datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f'"{value}" is not a time such as 2026-03-02 or 2026-03-02T06:00:00+01:00', param, ctx)
        made = Timestamp()
        made.FromDatetime(moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC))
        return made


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags; the command gets `where`, None when none is given.

    A flag may be given several times: one of its values must fit. Different flags must all fit.
    """

    @functools.wraps(command)
    def with_filter(before: Timestamp | None, since: Timestamp | None, **others: Any) -> object:
        parts = [_any_of(field, values) for flag, field, _ in _LISTS if (values := others.pop(flag[2:]))]
        times = {"--before": before, "--since": since}
        parts += [_compared(op, time) for flag, op, _ in _TIMES if (time := times[flag]) is not None]
        where = types_pb2.Filter(all=types_pb2.FilterList(filters=parts)) if parts else None
        return command(where=where, **others)

    made: Callable[..., Any] = with_filter
    for flag, _, text in reversed(_TIMES):
        made = click.option(flag, type=Instant(), help=text)(made)
    for flag, _, text in reversed(_LISTS):
        made = click.option(flag, multiple=True, help=text)(made)
    return made


def given_flags(parameters: Mapping[str, object]) -> list[tuple[str, object]]:
    """Return the flags of a running command that make its filter, with their values, in the order of its parts.

    Args:
        parameters: All of the command, by name.
    """
    given = [(flag, parameters.get(flag[2:])) for flag, *_ in _LISTS]
    given = [(flag, values) for flag, values in given if values]
    return given + [(flag, time) for flag, *_ in _TIMES if (time := parameters.get(flag[2:])) is not None]


def _any_of(field: types_pb2.FilterField.ValueType, values: tuple[str, ...]) -> types_pb2.Filter:
    return types_pb2.Filter(
        comparison=types_pb2.Comparison(
            field=field,
            op=types_pb2.FILTER_OPERATOR_IN,
            value=types_pb2.AttributeValue(string_list=types_pb2.StringList(values=values)),
        )
    )


def _compared(op: types_pb2.FilterOperator.ValueType, time: Timestamp) -> types_pb2.Filter:
    comparison = types_pb2.Comparison(field=types_pb2.FILTER_FIELD_EVENT_TIME, op=op, time_value=time)
    return types_pb2.Filter(comparison=comparison)
