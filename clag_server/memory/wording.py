"""Checks of what a language model wrote: clean, in the memory's language, no words of the prompt, not a loop.

Small models repeat themselves and copy words of the prompt into their answers (measured with SmolLM2-135M), so
nothing that a model says is stored before it has passed these.

Words are compared whole, in any inflected form (as the index stems them), never as parts of each other: a
memory of a potter is not about the "pottery" of the prompt's examples, nor is "potter" a word of theirs. In
scripts without spaces a pair of Han characters counts as a word of the examples where a run of such characters
begins or ends with it; in the middle of a run it is made of two other words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence

from clag_server.memory import prompts
from clag_server.memory.lexical import telling, tokens

_DROPPED = frozenset({"Cc", "Cs", "Co", "Cn"})
"""Unicode categories of control characters, lone surrogates, private and unassigned characters."""

_ENGLISH = frozenset("the of and is are was with for this that has have from about".split())
_NOT_ENGLISH = frozenset(
    """der die das und ist nicht ein eine ich mit auf el los las una que está es por con le les des est une pour
    il che sono per não uma os het een niet och är att nie jest""".split()
)
"""Words that tell English from other languages in Latin script, as far as a short note has any."""

_HAN_RUN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]+")

_LOOP_WORDS = 6
"""Shorter texts may repeat a word."""


def clean(text: str, characters: int) -> str:
    """Return a text without control characters, lone surrogates and markup brackets, on one line, bounded."""
    kept = "".join(c if c not in "<>" and unicodedata.category(c) not in _DROPPED else " " for c in text)
    return " ".join(kept.split())[:characters].strip()


def clean_words(raw: object, characters: int) -> tuple[str, ...]:
    """Return the distinct clean words of a list, whatever their case; anything else in it is dropped."""
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        return ()
    found: dict[str, str] = {}
    for word in raw:
        cleaned = clean(word, characters) if isinstance(word, str) else ""
        if any(c.isalnum() for c in cleaned):
            found.setdefault(cleaned.casefold(), cleaned)
    return tuple(found.values())


def leaked(text: str, known: Collection[str]) -> bool:
    """Return whether a text has words of the prompt's examples that nothing asked about has (case T5).

    Args:
        text: What the model wrote.
        known: Index tokens of all that it was asked about.
    """
    examples = prompts.example_words()
    return any(token in examples and token not in known and _is_word(token, text) for token in tokens(text))


def borrows(text: str, own: Collection[str], shown: Collection[str]) -> bool:
    """Return whether a text has words of other memories than those that it may be about (case D1).

    What stands on a memory must be made of its own words or of nobody's: nothing would take a neighbour's words
    away again when the neighbour is deleted.

    Args:
        text: What the model wrote.
        own: Index tokens of the memories that it is about.
        shown: Index tokens of all memories that the model was shown.
    """
    return any(token in shown and token not in own and telling(token) for token in tokens(text))


def _is_word(token: str, text: str) -> bool:
    """Return whether an index token stands for a word of its text, and not for the seam of two."""
    if not _HAN_RUN.fullmatch(token):
        return True
    runs = _HAN_RUN.findall(unicodedata.normalize("NFKC", text))
    return any(run.startswith(token) or run.endswith(token) for run in runs)


def parrots(word: str, known: Collection[str]) -> bool:
    """Return whether a keyword or tag is made of the prompt's words alone, of its examples or its instruction."""
    found = tokens(word)
    ours = prompts.example_words() | prompts.instruction_words()
    return bool(found) and all(token in ours and token not in known for token in found)


def loops(text: str) -> bool:
    """Return whether a text says the same again and again: half of its words, or a run of three of them."""
    words = text.casefold().split()
    if len(words) < _LOOP_WORDS:
        return len(text) >= 3 * _LOOP_WORDS and len(set(text)) <= 3  # "ababab...", with no blank between
    if 2 * sum(c.isalpha() for word in words for c in word) < sum(map(len, words)):
        return True  # "1. 2. 3. 4. ..."
    runs = [tuple(words[i : i + 3]) for i in range(len(words) - 2)]
    return len(set(words)) * 2 <= len(words) or len(set(runs)) < len(runs)


def same_language(text: str, sources: Sequence[str]) -> bool:
    """Return whether a text is written as one of its sources is: in its script, and not in English where it is not.

    English is what small models fall back to. Texts without letters, or too short to tell, pass.
    """
    own = _scripts(text)
    if own and not own & {script for source in sources for script in _scripts(source)}:
        return False
    words, theirs = set(text.casefold().split()), {word for one in sources for word in one.casefold().split()}
    turned = words & _ENGLISH and not words & _NOT_ENGLISH
    return not (turned and theirs & _NOT_ENGLISH and not theirs & _ENGLISH)


def _scripts(text: str) -> set[str]:
    """Return the first words of the letters' Unicode names: LATIN, CYRILLIC, CJK, HIRAGANA, ..."""
    return {unicodedata.name(c, "?").split()[0] for c in set(text) if c.isalpha()}
