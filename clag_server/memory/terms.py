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
_FILLERS = frozenset(
    """dont im ive id youre theyr wer cant wont didnt doesnt isnt wasnt couldnt wouldnt thats hes shes lets
    one two get got go went come came say said ask know think look like want need see make made take thing way lot
    yes yeah nope okay sure thank hello hey wow great good realli realy much mani also still back never alway
    today""".split()
)
"""Stems that are no topic in any cluster; they stay searchable."""

_HANGUL_WORD = re.compile(r"[\uac00-\ud7af]{2,}")


def term_candidates(text: str) -> Counter[str]:
    """Count the tokens that can stand as a keyword: no lone letters, digits, or fragments of CJK words."""
    return Counter(token for token in tokens(text) if _can_stand(token))


def distinctive(
    counts: Mapping[str, int], document_frequency: Mapping[str, int], documents: int, *, limit: int
) -> list[str]:
    """Return the tokens of one text with the highest (1 + log tf) * idf, best first, ties alphabetically.

    Args:
        counts: Occurrences of each token in the text.
        document_frequency: Memories that hold the token, over the namespace.
        documents: Memories in the namespace.
        limit: How many tokens to return.
    """
    documents = max(documents, 1)

    def weight(token: str) -> float:
        frequency = min(max(document_frequency.get(token, 0), 1), documents)
        return (1 + math.log(counts[token])) * math.log(1 + documents / frequency)

    return sorted(counts, key=lambda token: (-weight(token), token))[:limit]


def characteristic(
    counts: Mapping[str, int], sampled: int, document_frequency: Mapping[str, int], documents: int, *, limit: int
) -> list[str]:
    """Return the tokens that tell a cluster from the rest of its namespace, best first, ties alphabetically.

    A token weighs what it adds to the Kullback-Leibler divergence of the cluster from the namespace: how often the
    cluster says it, times how much more often than all do. Frequent words that everyone says weigh nothing, and
    rare words weigh little.

    Args:
        counts: Sampled memories of the cluster that hold each token.
        sampled: Memories sampled.
        document_frequency: Memories that hold the token, over the namespace.
        documents: Memories in the namespace.
        limit: How many tokens to return.
    """
    sampled, documents = max(sampled, 1), max(documents, 1)

    def weight(token: str) -> float:
        # Half a memory is added to what the namespace says, so that a small cluster is not all surprise.
        expected = (max(document_frequency.get(token, 0), counts[token]) + 0.5) / (documents + 1)
        share = counts[token] / sampled
        return share * math.log(share / expected)

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
    return len(token) > 2 and not token[0].isdigit() and token not in _FILLERS


def _forms(text: str) -> dict[str, str]:
    """Surface form of each token; a Hangul bigram stands for the whole word that it is in."""
    forms = surface_forms(text)
    for word in _HANGUL_WORD.findall(text):
        for i in range(len(word) - 1):
            forms[word[i : i + 2]] = word
    return forms
