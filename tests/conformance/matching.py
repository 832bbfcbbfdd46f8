"""What a scenario expects of an answer: the parts that it names, and nothing of the others.

A mapping matches when each of its keys does; a list when it has as many elements and each matches; a number also a
string of its digits (64-bit integers are strings in JSON). Keys that begin with `$` are rules, which must all hold:

    $any: true          something is there, whatever it is
    $absent: true       the key is not there
    $empty: true        "", 0, [], {} or nothing; false: something else
    $ge, $le: 5         at least, at most
    $len: 3             a list or text of this length (or of one that matches a rule)
    $one_of: [A, B]     one of these matches
    $all: PATTERN       every element matches
    $has: PATTERN       one element matches
    $sorted: [..]       the same elements in any order
    $regex: "^m"        a text in which this is found
    $not: PATTERN       this does not match
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

__all__ = ["mismatch"]

_MISSING: Final = object()
_SHOWN: Final = 200


def mismatch(actual: Any, expected: Any, where: str = "answer") -> str | None:
    """Compare.

    Args:
        actual: what came, as JSON has it.
        expected: what a scenario says.
        where: what `actual` is called in sentences.

    Returns:
        The first difference, in a sentence; None when there is none.
    """
    if isinstance(expected, Mapping):
        if expected and all(key.startswith("$") for key in expected):
            found = (_rule(name, wanted, actual, where) for name, wanted in expected.items())
            return next((sentence for sentence in found if sentence), None)
        return _mapping(actual, expected, where)
    if actual is _MISSING:
        return f"{where} is missing, expected {_shown(expected)}"
    if isinstance(expected, list):
        return _list(actual, expected, where)
    if _both_numbers(actual, expected):
        same = _number(actual) == _number(expected)
    else:
        same = actual == expected and isinstance(actual, bool) is isinstance(expected, bool)
    return None if same else f"{where} is {_shown(actual)}, expected {_shown(expected)}"


def _mapping(actual: Any, expected: Mapping[str, Any], where: str) -> str | None:
    if not isinstance(actual, Mapping):
        return f"{where} is {_shown(actual)}, expected {_shown(expected)}"
    found = (mismatch(actual.get(key, _MISSING), value, f"{where}.{key}") for key, value in expected.items())
    return next((sentence for sentence in found if sentence), None)


def _list(actual: Any, expected: list[Any], where: str) -> str | None:
    if not isinstance(actual, list) or len(actual) != len(expected):
        return f"{where} is {_shown(actual)}, expected {_shown(expected)}"
    pairs = zip(actual, expected, strict=True)
    found = (mismatch(one, other, f"{where}[{index}]") for index, (one, other) in enumerate(pairs))
    return next((sentence for sentence in found if sentence), None)


def _rule(name: str, wanted: Any, actual: Any, where: str) -> str | None:
    if name == "$absent":
        return None if (actual is _MISSING) is wanted else f"{where} is {_shown(actual)}"
    if name == "$empty":
        return None if (actual is _MISSING or not actual) is wanted else f"{where} is {_shown(actual)}"
    if actual is _MISSING:
        return f"{where} is missing"
    if name == "$len":
        return mismatch(len(actual), wanted, f"the length of {where}")
    holds = _RULES[name](actual, wanted)
    return None if holds else f"{where} is {_shown(actual)}, expected {name} {_shown(wanted)}"


_RULES: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$any": lambda _actual, _wanted: True,
    "$ge": lambda actual, wanted: _number(actual) >= wanted,
    "$le": lambda actual, wanted: _number(actual) <= wanted,
    "$one_of": lambda actual, wanted: any(mismatch(actual, one) is None for one in wanted),
    "$all": lambda actual, wanted: all(mismatch(one, wanted) is None for one in actual),
    "$has": lambda actual, wanted: any(mismatch(one, wanted) is None for one in actual),
    "$sorted": lambda actual, wanted: mismatch(sorted(actual), sorted(wanted)) is None,
    "$regex": lambda actual, wanted: re.search(wanted, actual) is not None,
    "$not": lambda actual, wanted: mismatch(actual, wanted) is not None,
}


def _both_numbers(actual: Any, expected: Any) -> bool:
    return _is_number(expected) and (
        _is_number(actual) or (isinstance(actual, str) and actual.lstrip("-").isdigit())
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> float:
    return int(value) if isinstance(value, str) else value


def _shown(value: Any) -> str:
    if value is _MISSING:
        return "missing"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"
