"""Distinctive terms of a text or a cluster: TF-IDF over the namespace's lexical index, written as people write.

This is the deterministic annotator: it needs no model, works in any script, and cannot say what the text does not.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from clag_server.memory.lexical import surface_forms, tokens

_HAN_PAIR = re.compile(r"^[\u4e00-\u9fff\u3400-\u4dbf\u30a0-\u30ff]{2}$")
_OTHER_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_HANGUL_WORD = re.compile(r"[\uac00-\ud7af]{2,}")


def term_candidates(text: str) -> Counter[str]:
    """Count the tokens that can stand as a keyword: no lone letters, digits, or fragments of CJK words."""
    return Counter(token for token in tokens(text) if _can_stand(token))


def distinctive(
    counts: Mapping[str, int],
    document_frequency: Mapping[str, int],
    documents: int,
    *,
    limit: int,
    own: bool = False,
) -> list[str]:
    """Return the tokens with the highest (1 + log tf) * idf, best first, ties alphabetically.

    Args:
        counts: Occurrences of each token in the text, or in all texts of a cluster.
        document_frequency: Memories that hold the token, over the namespace.
        documents: Memories in the namespace.
        limit: How many tokens to return.
        own: Weigh each token also by the share of its memories that are counted: for a cluster, which words are
            its own rather than merely frequent (class-based TF-IDF).
    """
    documents = max(documents, 1)

    def weight(token: str) -> float:
        frequency = min(max(document_frequency.get(token, 0), 1), documents)
        share = min(1.0, counts[token] / frequency) if own else 1.0
        return share * (1 + math.log(counts[token])) * math.log(1 + documents / frequency)

    return sorted(counts, key=lambda token: (-weight(token), token))[:limit]


def written(terms: Sequence[str], texts: Iterable[str], *, limit: int) -> tuple[str, ...]:
    """Return the terms as the texts write them, without repeating a word, at most `limit`."""
    forms: dict[str, Counter[str]] = {}
    wanted = set(terms)
    for text in texts:
        for token, form in _forms(text).items():
            if token in wanted:
                forms.setdefault(token, Counter())[form] += 1
    found: list[str] = []
    seen: set[str] = set()
    for term in terms:
        form = min(forms[term], key=lambda f: (-forms[term][f], f)) if term in forms else term
        if form.casefold() not in seen:
            seen.add(form.casefold())
            found.append(form)
    return tuple(found[:limit])


def _can_stand(token: str) -> bool:
    if _OTHER_UNSPACED.search(token):
        return bool(_HAN_PAIR.match(token)) or bool(_HANGUL_WORD.fullmatch(token))
    return len(token) > 2 and not token[0].isdigit()


def _forms(text: str) -> dict[str, str]:
    """Surface form of each token; a Hangul bigram stands for the whole word that it is in."""
    forms = surface_forms(text)
    for word in _HANGUL_WORD.findall(text):
        for i in range(len(word) - 1):
            forms[word[i : i + 2]] = word
    return forms
