r"""Lone surrogates: JSON can write half of a character (`\ud83d`), which no well-formed text can hold."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["surrogate_in"]


def surrogate_in(value: object, path: str = "") -> str | None:
    """Return where the first text with one is, as in `metadata.notes[2]`; None where there is none.

    A key that has one is named by the object that it is in ("" for the row itself), as it cannot be printed.
    """
    if isinstance(value, str):
        return path if any("\ud800" <= character <= "\udfff" for character in value) else None
    inner: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        if any(surrogate_in(key) is not None for key in value):
            return path
        inner = ((f"{path}.{key}" if path else key, one) for key, one in value.items())
    elif isinstance(value, list):
        inner = ((f"{path}[{at}]", one) for at, one in enumerate(value))
    for deeper, one in inner:
        found = surrogate_in(one, deeper)
        if found is not None:
            return found
    return None
