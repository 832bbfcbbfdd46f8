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

_FOREIGN_FILLERS = frozenset(
    """aber als auch auf aus bei bis das dass dem den der des doch durch ein eine einem einen einer eines er es für
    gegen hab habe haben hatt hier ich ihr ihre immer ist jetzt kann kein keine mein mich mir mit nach nicht
    noch nur oder ohne schon sehr sein sich sie sind über und uns unter vom von vor waren wenn wer wie wieder
    wir wird wurde zum zur zwischen alors aux avec avoir cette ces cela comme dans deux donc elle elles est être
    ici ils les leur leurs mais mes mon nos notre nous par pas plus quand que qui quoi sans ses sont sous sur
    très une vers vos votre vous algo ante así aún cada como con cual cuando cuál del desde donde ella ellas
    ellos entre eran esa ese eso está están esta este esto fue las los más mis muy nada otra otro para pero por
    porque qué quien sin sobre sus también tan tiene todo una unas uno unos alla allo anche ancora che chi cosa
    cui dal dalla degli dei della delle dello dentro dopo ecco gli hanno loro lui mentre molto negli nei nel
    nella noi non oggi perché per più poi quando quel quella questa questo sei senza sia siamo sono sopra sotto
    sta stato sua suo sui sul sulla tra ainda ao aos até com depois dos ela elas ele eles então essa esse estão
    foi isso isto mas muito nas nem não onde pela pelo quem sem ser seu são também tem uma aan achter bij dat
    deze een geen hebben heeft het hij iets ik maar meer mijn naar niet nog nu ook onder ons te tot uit voor
    want wat wij ze zich zijn zo zonder без был была были было вас вот всё все вы где для его ещё или как когда
    кто мне мой мы над нас нет них она они оно при про так там того только тут уже чем что это этот إلى أن أنا
    أو الذي التي بعد بين تحت ثم حتى حين دون ذلك على عليه عن عند فوق في فيه قبل قد كان كانت كل كما لا لم لن له
    لها ليس ما مع من منذ منه نحن هذا هذه هل هم هنا هو هي""".split()
)
"""Function words of German, French, Spanish, Italian, Portuguese, Dutch, Russian and Arabic; they stay searchable,
like `_FILLERS`. Those that are words of weight in English (war, son, door) are left out."""

_HANGUL_WORD = re.compile(r"[\uac00-\ud7af]{2,}")
_HAN_OR_KATAKANA_WORD = re.compile(r"[\u4e00-\u9fff\u3400-\u4dbf]{2,5}|[\u30a0-\u30ff]{2,16}")
_RUN = re.compile(r"[\u4e00-\u9fff\u3400-\u4dbf]+|[\u30a0-\u30ff]+")


_FOREIGN_STEMS = frozenset(token for word in _FOREIGN_FILLERS for token in tokens(word))


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
    return len(token) > 2 and not token[0].isdigit() and token not in _FILLERS and token not in _FOREIGN_STEMS


def _forms(text: str) -> dict[str, str]:
    """Surface form of each token; a bigram of an unspaced script stands for the whole word that it is in.

    A run of Han characters too long for a word (a Chinese sentence) is left in pieces.
    """
    forms = surface_forms(text)
    runs = (run for run in _RUN.findall(text) if _HAN_OR_KATAKANA_WORD.fullmatch(run))
    for word in (*_HANGUL_WORD.findall(text), *runs):
        for i in range(len(word) - 1):
            forms[word[i : i + 2]] = word
    return forms
