"""What a file looks like, to refuse one that is plainly of another kind before its rows become nonsense.

A Graphiti file read as mem0 would give memories with wrong ids and without their sessions, row by row without a
complaint. Only what is certain counts: a file's first bytes, and fields that one system alone has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from clag_server.foreign.reading import Value

__all__ = ["KINDS", "OWN", "SAMPLED_ROWS", "container_of", "system_of"]

OWN: Final = "clag"
"""The export of this program."""

KINDS: Final = {
    OWN: "an export of this program",
    "mem0": "an export of mem0",
    "langgraph": "items of a LangGraph store",
    "graphiti": "an export of Graphiti",
}
"""What `system_of` returns, in words."""

SAMPLED_ROWS: Final = 64
"""Rows that are looked at: sections of a document may begin with rows that tell nothing."""

_BEGINNINGS: Final = {
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "a gzip file",
    b"SQLite format 3\x00": "a SQLite database",
    b"PK\x03\x04": "a ZIP archive",
    b"\x28\xb5\x2f\xfd": "a Zstandard file",
    b"%PDF-": "a PDF document",
}
_OWN_ROWS: Final = frozenset(("namespace", "cluster", "memory"))
_GRAPHITI_SECTIONS: Final = ("episod", "edges", "nodes")
_GRAPHITI_FIELDS: Final = frozenset(("group_id", "source_description", "valid_at", "fact", "name_embedding"))


def container_of(beginning: bytes) -> str:
    """Return what a file of other than JSON is by its first 16 bytes, in words; "" when they do not tell."""
    return next((what for mark, what in _BEGINNINGS.items() if beginning.startswith(mark)), "")


def system_of(rows: Iterable[Value]) -> str:
    """Return the system whose rows these are, all that tell anything; "" when they do not tell or differ."""
    told = {system for row in rows if not row.error and (system := _of_row(row))}
    return told.pop() if len(told) == 1 else ""


def _of_row(row: Value) -> str:
    fields = row.value
    if not isinstance(fields, dict):
        return ""
    if len(fields) == 1 and isinstance(next(iter(fields.values())), dict) and fields.keys() <= _OWN_ROWS:
        return OWN
    if "key" in fields and "value" in fields:
        return "langgraph"
    if isinstance(fields.get("memory"), str):
        return "mem0"
    inner = fields.get("properties")
    if isinstance(inner, dict):
        fields = inner
    if "uuid" in fields and (_GRAPHITI_FIELDS & fields.keys() or row.section.startswith(_GRAPHITI_SECTIONS)):
        return "graphiti"
    return ""
