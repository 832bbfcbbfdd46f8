"""The contract's source text without the validation rules, for those who generate clients from it.

A client must not need the schema of the rules, and its reader wants the comments: so options are cut out of the
text and everything else stays as it is written. What is cut is found in a copy of the text in which comments and
strings are blanked, so that neither can be taken for an option.
"""

from __future__ import annotations

import re

__all__ = ["HEADER", "strip_rules"]

HEADER = "// Made from proto/ by tools/generate.py, without the validation rules. Do not edit.\n\n"

_QUOTED_OR_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
_IMPORT = re.compile(r'^import "buf/validate/[^"]*";\n', re.MULTILINE)
_STATEMENT = re.compile(r"^[ \t]*option \(buf\.validate\.", re.MULTILINE)
_RULE = "(buf.validate."
_PAIRS = {"[": "]", "{": "}", "(": ")"}


def strip_rules(source: str) -> str:
    """Cut the import, the options and the field options of the rules out of a .proto file.

    Args:
        source: the file, formatted by `buf format`.

    Returns:
        The rest, with `HEADER` above it. Not formatted: what a cut leaves behind may be shorter than it could be.

    Raises:
        ValueError: if a bracket of the source is never closed.
    """
    text = _IMPORT.sub("", source)
    text = _without_statements(text)
    text = _without_field_options(text)
    return HEADER + text


def _without_statements(text: str) -> str:
    blank = _blanked(text)
    kept, position = [], 0
    for found in _STATEMENT.finditer(blank):
        kept.append(text[position : found.start()])
        position = _end_of_statement(blank, found.end())
    return "".join([*kept, text[position:]])


def _without_field_options(text: str) -> str:
    blank = _blanked(text)
    kept, position = [], 0
    while (start := blank.find("[", position)) >= 0:
        end = _closing(blank, start)
        options = [text[a:b].strip() for a, b in _elements(blank, start + 1, end)]
        others = [option for option in options if not option.startswith(_RULE)]
        kept.append(text[position:start])
        if len(others) == len(options):
            kept.append(text[start : end + 1])
        elif others:
            kept.append(f"[{', '.join(others)}]")
        else:
            kept[-1] = kept[-1].rstrip()
        position = end + 1
    return "".join([*kept, text[position:]])


def _blanked(text: str) -> str:
    """Return the text with every character of comments and strings, line ends excepted, as a space."""
    return _QUOTED_OR_COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def _end_of_statement(blank: str, start: int) -> int:
    depth = 1  # inside the parenthesis of the option's name
    for index in range(start, len(blank)):
        depth += (blank[index] in _PAIRS) - (blank[index] in _PAIRS.values())
        if blank[index] == ";" and depth == 0:
            line_end = blank.find("\n", index)
            return len(blank) if line_end < 0 else line_end + 1
    raise ValueError(f"the option at character {start} is never closed")


def _closing(blank: str, start: int) -> int:
    depth = 0
    for index in range(start, len(blank)):
        depth += (blank[index] in _PAIRS) - (blank[index] in _PAIRS.values())
        if depth == 0:
            return index
    raise ValueError(f"the bracket at character {start} is never closed")


def _elements(blank: str, start: int, end: int) -> list[tuple[int, int]]:
    """Return where the comma-separated elements between two brackets begin and end."""
    places, depth, first = [], 0, start
    for index in range(start, end):
        depth += (blank[index] in _PAIRS) - (blank[index] in _PAIRS.values())
        if blank[index] == "," and depth == 0:
            places.append((first, index))
            first = index + 1
    return [*places, (first, end)]
