"""Words of a text for the lexical index and for term statistics, in any script.

Text is normalised (NFKC, case-folded) and cut into words. Words of scripts written without spaces (Han, Kana,
Hangul, Thai, ...) become single characters and overlapping bigrams, so that a one- or two-character query finds
them (design, section 3). Everything else is stemmed (Snowball English) unless it is a stop word. A token is plain
data: it holds letters, digits and marks only, so no query syntax can hide in it.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator

import Stemmer

MAX_TOKENS = 8192
"""Tokens indexed of one text; a memory has at most 32 KiB, so only degenerate texts are cut."""

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*", re.UNICODE)
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    r"\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)
_HAN_PAIR = re.compile(r"[\u4e00-\u9fff]{2}")

STOP_WORDS = frozenset(
    """a about above after again against all am an and any are as at be because been before being below between
    both but by can could did do does doing don down during each few for from further had has have having he her
    here hers herself him himself his how i if in into is it its itself just let me more most my myself no nor not
    now of off on once only or other our ours ourselves out over own s same she should so some such t than that
    the their theirs them themselves then there these they this those through to too under until up very was we
    were what when where which while who whom why will with would you your yours yourself yourselves""".split()
)
"""English function words. Other languages keep theirs: BM25's idf makes frequent words weigh little."""


def tokens(text: str) -> list[str]:
    """Return the index tokens of a text, in order, at most `MAX_TOKENS`."""
    found: list[str] = []
    for word in _words(text):
        found.extend(_token_forms(word))
        if len(found) >= MAX_TOKENS:
            return found[:MAX_TOKENS]
    return found


def telling(token: str) -> bool:
    """Return whether a token says something by itself: a word, a number or code, a pair of Han characters.

    Lone characters and runs of Kana are grammar, and in every Japanese text.
    """
    return len(token) > 2 or any(c.isdigit() for c in token) or _HAN_PAIR.fullmatch(token) is not None


def surface_forms(text: str) -> dict[str, str]:
    """Map each token to the first word of the text that it stands for, as a reader would write it."""
    forms: dict[str, str] = {}
    for match in _WORD.finditer(unicodedata.normalize("NFKC", text)):
        word = match.group()
        for token in _token_forms(word.casefold()):
            forms.setdefault(token, token if _UNSPACED.search(token) else word)
    return forms


def _words(text: str) -> Iterator[str]:
    for match in _WORD.finditer(unicodedata.normalize("NFKC", text).casefold()):
        yield match.group()


@functools.lru_cache(maxsize=65_536)
def _token_forms(word: str) -> tuple[str, ...]:
    """Tokens of one case-folded word; cached because language repeats itself."""
    if not _UNSPACED.search(word):
        token = _stem(word)
        return (token,) if token else ()
    forms: list[str] = []
    position = 0
    for run in _UNSPACED.finditer(word):
        if head := _stem(word[position : run.start()]):
            forms.append(head)
        characters = run.group()
        forms.extend(characters)
        forms.extend(characters[i : i + 2] for i in range(len(characters) - 1))
        position = run.end()
    if tail := _stem(word[position:]):
        forms.append(tail)
    return tuple(forms)


def _stem(word: str) -> str:
    word = word.replace("’", "'").removesuffix("'s").replace("'", "")
    if not word or word in STOP_WORDS:
        return ""
    stemmed: str = _STEMMER.stemWord(word)
    return stemmed


_STEMMER = Stemmer.Stemmer("english")
