"""The patterns of the contract in words: nobody who is refused has to read a regular expression."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["in_words"]

_NAME: Final = "1 to 63 of a-z 0-9 and -, the first no -"
_ID: Final = "of A-Z a-z 0-9 . _ : and -"
_PATTERNS: Final = {
    "^[a-z0-9][a-z0-9-]{0,62}$": f"must be {_NAME}",
    "^([a-z0-9][a-z0-9-]{0,62})?$": f"must be empty or {_NAME}",
    "^[A-Za-z0-9._:-]{1,128}$": f"must be 1 to 128 {_ID}",
    "^[A-Za-z0-9._:-]{0,128}$": f"must be at most 128 {_ID}",
}
_RULE: Final = re.compile(r"does not match regex pattern `([^`]*)`")


def in_words(description: str) -> str:
    """Return what is wrong with a value, with the contract's patterns in words; an unknown pattern stays."""
    return _RULE.sub(lambda rule: _PATTERNS.get(rule[1], rule[0]), description)
