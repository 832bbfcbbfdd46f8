"""Readers of what other memory systems export as files; each row becomes an `ExportRecord`, or a reason why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

from clag.v1 import admin_service_pb2 as pb

from clag_server.foreign import graphiti, langgraph, mem0
from clag_server.foreign.drafts import BadRow
from clag_server.foreign.kinds import KINDS, OWN, SAMPLED_ROWS, container_of, system_of
from clag_server.foreign.reading import Value, values
from clag_server.foreign.surrogates import surrogate_in

__all__ = ["OWN", "SYSTEMS", "ForeignRow", "OtherKind", "container_of", "read"]

SYSTEMS: Final[Mapping[str, Callable[[Value], pb.ExportRecord | None]]] = {
    "mem0": mem0.record_of,
    "langgraph": langgraph.record_of,
    "graphiti": graphiti.record_of,
}
"""By name: what makes a record of a row; None for rows that are no memories."""


@dataclass(frozen=True, slots=True)
class ForeignRow:
    """One row, and its record, or what is wrong with it.

    Attributes:
        line: Where it begins in the file, from 1.
        record: Its record; None with an error.
        error: What is wrong, "" for nothing.
        cut: Whether the file could not be read on from here.
        item: Its number from 1 where the whole document is one line, else 0.
    """

    line: int
    record: pb.ExportRecord | None
    error: str = ""
    cut: bool = False
    item: int = 0


class OtherKind(ValueError):
    """A file that is plainly of another kind.

    Args:
        kind: What it looks like, in words.
        system: A key of `SYSTEMS`, or `OWN`, where it is one of those; else "".
    """

    def __init__(self, kind: str, system: str = "") -> None:
        super().__init__(f"looks like {kind}")
        self.kind = kind
        self.system = system


def read(system: str, data: bytes) -> Iterator[ForeignRow]:
    """Read a file's rows; rows that are no memories are passed over.

    Args:
        system: A key of `SYSTEMS`.
        data: The file: a JSON document, or JSON Lines.

    Raises:
        OtherKind: Before the first row.
    """
    if container := container_of(data[:16]):
        raise OtherKind(container)
    rows = values(data)
    first = list(islice(rows, SAMPLED_ROWS))
    found = system_of(first)
    if found and found != system:
        raise OtherKind(KINDS[found], found)
    for value in chain(first, rows):
        row = _row(SYSTEMS[system], value)
        if row is not None:
            yield row


def _row(record_of: Callable[[Value], pb.ExportRecord | None], value: Value) -> ForeignRow | None:
    """Convert one row; whatever it holds, it costs no other."""
    if value.error:
        return ForeignRow(value.line, None, value.error, value.cut, value.item)
    try:
        record = record_of(value)
    except BadRow as bad:
        wrong = str(bad)
    except UnicodeEncodeError:
        path = surrogate_in(value.value)
        wrong = f"{f'{path}: ' if path else ''}is not well-formed Unicode (a lone surrogate)"
    except Exception as error:  # noqa: BLE001  # told as the row's fault: a field that nobody thought of
        wrong = f"cannot be read as a memory ({type(error).__name__})"
    else:
        return None if record is None else ForeignRow(value.line, record, item=value.item)
    return ForeignRow(value.line, None, wrong, item=value.item)
