"""Readers of what other memory systems export as files; each row becomes an `ExportRecord`, or a reason why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from clag.v1 import admin_service_pb2 as pb

from clag_server.foreign import graphiti, langgraph, mem0
from clag_server.foreign.drafts import BadRow
from clag_server.foreign.reading import Value, values

__all__ = ["SYSTEMS", "ForeignRow", "read"]

SYSTEMS: Final[Mapping[str, Callable[[Value], pb.ExportRecord | None]]] = {
    "mem0": mem0.record_of,
    "langgraph": langgraph.record_of,
    "graphiti": graphiti.record_of,
}
"""By name: what makes a record of a row; None for rows that are no memories."""


@dataclass(frozen=True, slots=True)
class ForeignRow:
    """One row: its line in the file, and its record, or what is wrong with it."""

    line: int
    record: pb.ExportRecord | None
    error: str = ""


def read(system: str, data: bytes) -> Iterator[ForeignRow]:
    """Read a file's rows; rows that are no memories are passed over.

    Args:
        system: A key of `SYSTEMS`.
        data: The file: a JSON document, or JSON Lines.
    """
    record_of = SYSTEMS[system]
    for value in values(data):
        if value.error:
            yield ForeignRow(value.line, None, value.error)
            continue
        try:
            record = record_of(value)
        except BadRow as bad:
            yield ForeignRow(value.line, None, str(bad))
            continue
        if record is not None:
            yield ForeignRow(value.line, record)
