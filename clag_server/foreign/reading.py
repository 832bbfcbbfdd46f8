"""JSON files as rows with line numbers: JSON Lines, a list, or an object that holds lists by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Value", "values"]

_BLANK: Final = " \t\r\n"
_DECODER: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Value:
    """One row: where it begins, the list that it is in ("" for none), and its value or what is wrong."""

    line: int
    section: str
    value: Any
    error: str = ""


def values(data: bytes) -> Iterator[Value]:
    """Yield the rows of a file. What cannot be read ends the rows with an error that says where."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        yield Value(data.count(b"\n", 0, error.start) + 1, "", None, f"is not UTF-8 (byte {error.start})")
        return
    start = _skip(text, 0)
    if start == len(text):
        return
    if text[start] == "[":
        yield from _list(_Cursor(text, start), "")
        return
    try:
        document, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError:
        yield from _lines(text)
        return
    if _skip(text, end) < len(text):
        yield from _lines(text)
    elif isinstance(document, dict) and any(isinstance(one, list) and _rows(one) for one in document.values()):
        yield from _sections(_Cursor(text, start))
    else:
        yield Value(_line(text, start), "", document)


class _Cursor:
    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at


def _lines(text: str) -> Iterator[Value]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield Value(number, "", json.loads(line))
        except json.JSONDecodeError as error:
            yield Value(number, "", None, f"is not JSON: {error.msg} (column {error.colno})")


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
        line = _line(text, cursor.at)
        try:
            value, cursor.at = _DECODER.raw_decode(text, cursor.at)
        except json.JSONDecodeError as error:
            yield Value(error.lineno, section, None, f"is not JSON: {error.msg}; what follows was not read")
            cursor.at = len(text)
            return
        yield Value(line, section, value)
        cursor.at = _skip(text, cursor.at)
        if cursor.at < len(text) and text[cursor.at] == ",":
            cursor.at = _skip(text, cursor.at + 1)
    if cursor.at >= len(text):
        yield Value(_line(text, len(text)), section, None, "the list has no end: the file is cut off")
        return
    cursor.at += 1


def _rows(items: list[Any]) -> bool:
    return any(isinstance(item, dict) for item in items)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
