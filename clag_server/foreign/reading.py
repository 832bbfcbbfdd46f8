"""JSON files as rows with line numbers: JSON Lines, a list, or an object that holds lists by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

__all__ = ["Value", "values"]

_BLANK: Final = " \t\r\n"
_DECODER: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Value:
    """One row, or what is wrong with it.

    Attributes:
        line: Where it begins, from 1.
        section: The list that it is in, "" for none.
        value: The row; None with an error.
        error: What is wrong, "" for nothing.
        cut: Whether the file could not be read on from here.
        item: Its number from 1 where the whole document is one line, which tells nothing; else 0.
    """

    line: int
    section: str
    value: Any
    error: str = ""
    cut: bool = False
    item: int = 0


def values(data: bytes) -> Iterator[Value]:
    """Yield the rows of a file. What cannot be read ends the rows with an error that says where."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wrong = f"is not UTF-8 (byte {error.start})"
        yield Value(data.count(b"\n", 0, error.start) + 1, "", None, wrong, cut=True)
        return
    start = _skip(text, 0)
    if start == len(text):
        return
    if text[start] == "[":
        yield from _numbered(_list(_Cursor(text, start), ""), text)
        return
    try:
        document, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        yield from _lines(text)
        return
    if _skip(text, end) < len(text):
        yield from _lines(text)
    elif isinstance(document, dict) and any(isinstance(one, list) and _rows(one) for one in document.values()):
        yield from _numbered(_sections(_Cursor(text, start)), text)
    else:
        yield Value(_line(text, start), "", document)


class _Cursor:
    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at
        self._counted = 0
        self._line = 1

    def line(self) -> int:
        """The line of where it stands; counted on from the last time, as a file of many rows is long."""
        self._line += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._line


def _numbered(rows: Iterator[Value], text: str) -> Iterator[Value]:
    """Number the rows of a document that is one line."""
    if "\n" in text.strip():
        yield from rows
        return
    for item, row in enumerate(rows, start=1):
        yield replace(row, item=item)


def _lines(text: str) -> Iterator[Value]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield Value(number, "", json.loads(line))
        except (ValueError, RecursionError) as error:
            yield Value(number, "", None, _wrong(error))


def _sections(cursor: _Cursor) -> Iterator[Value]:
    """Rows of the lists of an object; its other members are no rows. The object is known to be well-formed."""
    text = cursor.text
    cursor.at = _skip(text, cursor.at + 1)
    while text[cursor.at] != "}":
        name, cursor.at = _DECODER.raw_decode(text, cursor.at)
        cursor.at = _skip(text, _skip(text, cursor.at) + 1)
        if text[cursor.at] == "[":
            yield from _list(cursor, name)
        else:
            _, cursor.at = _DECODER.raw_decode(text, cursor.at)
        cursor.at = _skip(text, cursor.at)
        if text[cursor.at] == ",":
            cursor.at = _skip(text, cursor.at + 1)


def _list(cursor: _Cursor, section: str) -> Iterator[Value]:
    text = cursor.text
    cursor.at = _skip(text, cursor.at + 1)
    while cursor.at < len(text) and text[cursor.at] != "]":
        line = cursor.line()
        try:
            value, cursor.at = _DECODER.raw_decode(text, cursor.at)
        except (ValueError, RecursionError) as error:
            at = error.lineno if isinstance(error, json.JSONDecodeError) else line
            yield Value(at, section, None, f"{_wrong(error)}; what follows was not read", cut=True)
            cursor.at = len(text)
            return
        yield Value(line, section, value)
        cursor.at = _skip(text, cursor.at)
        if cursor.at < len(text) and text[cursor.at] == ",":
            cursor.at = _skip(text, cursor.at + 1)
    if cursor.at >= len(text):
        at = _line(text, len(text.rstrip()))
        yield Value(at, section, None, "the list has no end: the file is cut off", cut=True)
        return
    cursor.at += 1


def _wrong(error: ValueError | RecursionError) -> str:
    """Say why a text is no JSON, without a word of it."""
    if isinstance(error, json.JSONDecodeError):
        return f"is not JSON: {error.msg} (column {error.colno})"
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    return "holds a number of too many digits"


def _rows(items: list[Any]) -> bool:
    return any(isinstance(item, dict) for item in items)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
