"""Text to and from a remote server, whose tokenizer is not ours.

Outwards: control tokens in a memory become plain text (case T2). The servers parse them in any prompt and offer no
switch, so what looks like one is broken by a space, which no vocabulary's control token survives. Inwards: the
JSON object is cut out of the prose that a server without constrained output puts around it (case M1).
"""

from __future__ import annotations

import json
import re
from typing import Final

__all__ = ["ReasoningFilter", "as_plain_text", "contained_object", "tidied", "without_reasoning"]

_MARKS: Final = re.compile(
    r"<(?=[|/｜]?[\w][^\s<>]{0,62}>)"  # <|im_start|>, </s>, <start_of_turn>, <｜User｜>, <unused12>
    r"|<(?=\|)"  # half of one, which the prompt around it could complete
    r"|<(?=<\w{1,16}>>)|(?<=<)<(?=/\w{1,16}>>)"  # <<SYS>>, <</SYS>>
    r"|\[(?=/?[A-Z][A-Z_]{1,30}\])"  # [INST], [/INST], [TOOL_CALLS]
)

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"
_REASONING: Final = re.compile(rf"^\s*{_OPEN}.*?(?:{_CLOSE}\s*|\Z)", re.DOTALL)

_TIDY: Final = {ord('"'): "'", ord("\\"): "/"} | dict.fromkeys((*range(32), 127), " ")


def as_plain_text(text: str) -> str:
    """Break what a server's tokenizer could take for a control token: `<|im_start|>` becomes `< |im_start|>`."""
    return _MARKS.sub(lambda mark: mark.group() + " ", text)


def without_reasoning(text: str) -> str:
    """Drop a block of reasoning at the beginning, which some models write even when told not to."""
    return _REASONING.sub("", text, count=1)


def contained_object(text: str) -> str | None:
    """Return the text of the first whole JSON object in `text`, or None when there is none."""
    decoder = json.JSONDecoder()
    start = text.find("{")
    for _ in range(64):  # bounded: a text of braces only would cost the square of its length
        if start < 0:
            return None
        try:
            parsed, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start = text.find("{", start + 1)
            continue
        if isinstance(parsed, dict):
            return text[start:end]
        start = text.find("{", end)
    return None


def tidied(value: object) -> object:
    """Return a JSON value whose texts hold no quote, backslash or control character (`schema.Text`).

    The in-process grammar never writes them; a JSON schema has no cheap way to forbid them, and an answer should
    not be lost for a quotation mark.
    """
    match value:
        case str():
            return value.translate(_TIDY)
        case list():
            return [tidied(one) for one in value]
        case dict():
            return {name: tidied(one) for name, one in value.items()}
        case _:
            return value


class ReasoningFilter:
    """Drops a block of reasoning from the beginning of a text that arrives in pieces."""

    def __init__(self) -> None:
        self._held = ""
        self._decided = False

    def feed(self, piece: str) -> str:
        """Return what may be shown of the text so far and was not returned before."""
        if self._decided:
            return piece
        self._held += piece
        begun = self._held.lstrip()
        if begun.startswith(_OPEN):
            end = begun.find(_CLOSE)
            if end < 0:
                return ""
            rest = begun[end + len(_CLOSE) :].lstrip()
        elif _OPEN.startswith(begun):
            return ""
        else:
            rest = self._held
        if not rest:
            return ""
        self._decided, self._held = True, ""
        return rest

    def rest(self) -> str:
        """Return what was held back and turned out to be text, once the text has ended."""
        return "" if self._decided or self._held.lstrip().startswith(_OPEN) else self._held
