"""How good an answer is: token F1 and BLEU-1 after the usual normalisation of question answering.

Lower case, no punctuation, no articles, single spaces. F1 counts tokens with their multiplicity; BLEU-1 is clipped
unigram precision with the brevity penalty.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Final

__all__ = ["bleu_1", "normalized", "token_f1"]

_ARTICLES: Final = frozenset({"a", "an", "the"})
_PUNCTUATION: Final = re.compile(r"[^\w\s]", re.UNICODE)


def normalized(text: str) -> list[str]:
    """Return the tokens of an answer that count."""
    words = _PUNCTUATION.sub(" ", text.casefold()).split()
    return [word for word in words if word not in _ARTICLES]


def token_f1(answer: str, right: str) -> float:
    """Return the F1 of the tokens, 0 to 1; two empty answers agree."""
    given, wanted = Counter(normalized(answer)), Counter(normalized(right))
    if not given or not wanted:
        return float(given == wanted)
    common = sum((given & wanted).values())
    if not common:
        return 0.0
    precision, recall = common / given.total(), common / wanted.total()
    return 2 * precision * recall / (precision + recall)


def bleu_1(answer: str, right: str) -> float:
    """Return BLEU-1, 0 to 1; two empty answers agree."""
    given, wanted = normalized(answer), normalized(right)
    if not given or not wanted:
        return float(given == wanted)
    common = sum((Counter(given) & Counter(wanted)).values())
    brevity = 1.0 if len(given) >= len(wanted) else math.exp(1 - len(wanted) / len(given))
    return brevity * common / len(given)
