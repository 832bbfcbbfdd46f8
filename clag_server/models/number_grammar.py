"""Whole numbers of a range as a grammar: exactly the decimals of the range, no leading zero, no plus sign."""

from __future__ import annotations

__all__ = ["whole_number"]


def whole_number(least: int, most: int) -> str:
    """Return an EBNF expression that matches exactly the decimals of `least` to `most`.

    Raises:
        ValueError: `least` is greater than `most`.
    """
    if least > most:
        raise ValueError(f"no whole number is in {least}..{most}")
    parts: list[str] = []
    if least < 0:
        smallest = 1 if most >= 0 else -most
        parts += [f'"-" {one}' for one in _magnitudes(smallest, -least)]
    if most >= 0:
        parts += _magnitudes(max(least, 0), most)
    return "(" + " | ".join(parts) + ")"


def _magnitudes(low: int, high: int) -> list[str]:
    """Return alternatives for `low` to `high`, both at least 0: a range for each number of digits."""
    found: list[str] = []
    while low <= high:
        top = min(high, 10 ** len(str(low)) - 1)
        found += _same_length(str(low), str(top))
        low = top + 1
    return found


def _same_length(low: str, high: str) -> list[str]:
    """Return alternatives for decimals of one length, split at the first digit that differs."""
    if low == high:
        return [f'"{low}"']
    if set(low) == {"0"} and set(high) == {"9"}:
        return [" ".join(["[0-9]"] * len(low))]
    if len(low) == 1:
        return [f"[{low}-{high}]"]
    first, last = int(low[0]), int(high[0])
    if first == last:
        return [f'"{low[0]}" {rest}' for rest in _same_length(low[1:], high[1:])]
    zeros, nines = "0" * (len(low) - 1), "9" * (len(low) - 1)
    found: list[str] = []
    if low[1:] != zeros:
        found += [f'"{first}" {rest}' for rest in _same_length(low[1:], nines)]
        first += 1
    tail: list[str] = []
    if high[1:] != nines:
        tail = [f'"{last}" {rest}' for rest in _same_length(zeros, high[1:])]
        last -= 1
    if first <= last:
        found += [f"[{first}-{last}] {rest}" for rest in _same_length(zeros, nines)]
    return found + tail
