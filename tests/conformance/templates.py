"""Values in scenarios: `${name}` and the generators.

`"${ns}"` alone is the value of the variable, whatever its type; inside a longer text it is its text. Dots go into
mappings and lists: `${created.memory.etag}`. A mapping with one key that begins with `$` makes a value:

    $repeat: [TEXT, TIMES]           a long text
    $numbered: [COUNT, TEMPLATE]     a list of the template with `${n}` from 1
    $planes: true                    a text with characters of every plane of Unicode
    $bytes: HEX                      bytes
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.conformance.samples import PLANES

__all__ = ["look_up", "rendered"]

_VARIABLE = re.compile(r"\$\{([a-z_][a-z0-9_.-]*)\}")


def rendered(value: Any, variables: Mapping[str, Any]) -> Any:
    """Return a value of a scenario with its variables filled in and its generators run.

    Raises:
        KeyError: if a variable is not known.
    """
    if isinstance(value, str):
        return _text(value, variables)
    if isinstance(value, list):
        return [rendered(one, variables) for one in value]
    if isinstance(value, Mapping):
        if len(value) == 1 and (name := next(iter(value))) in _GENERATORS:
            return _GENERATORS[name](value[name], variables)
        return {rendered(key, variables): rendered(one, variables) for key, one in value.items()}
    return value


def look_up(path: str, variables: Any) -> Any:
    """Follow a dotted path. Raises KeyError or IndexError where it leads nowhere."""
    found = variables
    for part in path.split("."):
        found = found[int(part)] if isinstance(found, list) else found[part]
    return found


def _text(text: str, variables: Mapping[str, Any]) -> Any:
    whole = _VARIABLE.fullmatch(text)
    if whole is not None:
        return look_up(whole.group(1), variables)
    return _VARIABLE.sub(lambda found: str(look_up(found.group(1), variables)), text)


def _repeat(value: Any, variables: Mapping[str, Any]) -> str:
    text, times = value
    return str(rendered(text, variables)) * int(times)


def _numbered(value: Any, variables: Mapping[str, Any]) -> list[Any]:
    count, template = value
    return [rendered(template, {**variables, "n": number}) for number in range(1, int(count) + 1)]


_GENERATORS: Final[dict[str, Callable[[Any, Mapping[str, Any]], Any]]] = {
    "$repeat": _repeat,
    "$numbered": _numbered,
    "$planes": lambda _value, _variables: PLANES,
    "$bytes": lambda value, _variables: bytes.fromhex(value),
}
