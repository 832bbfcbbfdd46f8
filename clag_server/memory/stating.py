"""Whether a sentence states a value of one thing: what tells "the door code is 1234" from "keys for room 12".

A number at the end of a sentence may be what is said (a value), or part of the name of what is spoken about (a
room, a page, an item of a list). In most languages the two are told apart by what ties the value to its
subject:

- a copula, a colon or an equals sign right before it: "the code is 1234", "Code der Tür: 1234", "ドアの番号は1234";
- a copula with one or two words after it, where the subject is one known thing: "the dock is in bay 3" says where
  the dock is, "there is a charger in bay 3" does not exclude one in bay 7.

Whatever has neither ("keys for room 12", "bus to Kassel leaves at 7:40") may be one of many and states no
value, and so does a language whose copula is not known here unless it is written with a colon or an equals
sign.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from clag_server.memory.lexical import tokens

__all__ = ["Statement", "stated"]

_SINGULAR: Final = frozenset(
    """is ist lautet beträgt est es está è é är jest είναι هو هي הוא היא là adalah ialah equals""".split()
)
"""Copulas of one thing, in English, Dutch, German, French, Spanish, Italian, Portuguese, Swedish, Polish, Greek,
Arabic, Hebrew, Vietnamese and Indonesian. Left out are words that mean something else elsewhere (Polish "to",
Danish "er", Czech "je"), and past tenses: what was may have been otherwise at another time."""

_PLURAL: Final = frozenset("are sind sont son sono são są".split())
"""Of several things. Where they are says nothing ("the keys are in room 12", others are in room 14); what they are
does ("the opening hours are 9-17")."""

_SIGNS: Final = ("=", ":", "：", "＝")
_DASHES: Final = frozenset("—–")
"""Russian and Ukrainian put a dash where others have a copula."""

_PARTICLES: Final = ("는", "은", "は", "是", "为", "為")
"""Written together with the word before them: the topic particles of Korean and Japanese, the Chinese copulas."""

_AT_THE_END: Final = ("です。", "です", "だ。", "입니다", "है", "است", "。")
"""Copulas and stops that come after the value."""

_MANY: Final = frozenset(
    """there a an some another one each every any all many several no here it he she they we you i this these those
    es ein eine einer noch jede jeder jedes alle manche hier er sie elle on un une des chaque hay un una
    unos unas otro otra cada c'è uno um uma outro outra het een er hij zij ett en det""".split()
)
"""First words of sentences about something that need not be the only one, or about somebody who is not named."""

_BETWEEN: Final = 2
"""Words between a copula and the value, at most: "in bay", "at"."""

_WORD: Final = re.compile(r"\S+")
_STOPS: Final = ".,;!?\"'“”«»()"
_TAIL: Final = re.compile(r"^(.*[^\W\d_a-z]|[^\W\d]+[:=：＝])([a-z]{0,3}\d[\w:./-]*)$", re.DOTALL)
"""A value written together with the words before it (scripts without spaces) or with its sign ("code:1234")."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What a sentence says: the words up to its value (case-folded), and the value."""

    of: tuple[str, ...]
    value: str


def stated(text: str) -> Statement | None:
    """Return what a sentence states, None where it plainly states no value of one thing.

    Args:
        text: One sentence, in any language. The value is its last word, with a digit in it.
    """
    words = _words(text)
    if len(words) < 2:
        return None
    *before, value = words
    if not any(c.isdigit() for c in value):
        return None
    return Statement(tuple(before), value) if _ties(before) else None


def _ties(before: Sequence[str]) -> bool:
    """Whether the words before a value tie it to one subject."""
    last = before[-1]
    if last in _SINGULAR | _PLURAL or last in _SIGNS:
        return _names(before[:-1])
    if last.endswith((*_SIGNS, *_PARTICLES)):
        return _names([*before[:-1], last[:-1]])
    if last in _DASHES:
        return _names(before[:-1]) and _cyrillic("".join(before))
    at = max((i for i, word in enumerate(before) if word in _SINGULAR), default=-1)
    return at > 0 and len(before) - at - 1 <= _BETWEEN and before[0] not in _MANY and _names(before[:at])


def _names(subject: Sequence[str]) -> bool:
    """Whether a subject names something: more than pronouns and articles."""
    if not subject or subject[0] in _MANY or list(subject) == ["il"]:  # French "it", the Italian article
        return False
    return any(len(one) > 1 for one in tokens(" ".join(subject)))


def _words(text: str) -> list[str]:
    """Return the case-folded words, a value apart from the word that it is written together with."""
    line = unicodedata.normalize("NFC", " ".join(text.split())).casefold().rstrip(_STOPS + " ")
    for end in _AT_THE_END:
        line = line.removesuffix(end).rstrip()
    words = [word.strip(_STOPS) for word in _WORD.findall(line)]
    words = [word for word in words if word]
    if words and (joined := _TAIL.match(words[-1])):
        words[-1:] = [joined[1], joined[2]]
    return words


def _cyrillic(text: str) -> bool:
    return any(unicodedata.name(c, "").startswith("CYRILLIC") for c in text)
