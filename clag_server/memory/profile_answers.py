"""A cluster's title, summary and tags by the SLM: question, answer, and its checks.

A profile is shown to people and conditions later choices, so it is believed only where it is the memories' own: in
their language, with a word of theirs in the title, without words of the prompt, and with a title that no other
cluster has. What fails is written by the deterministic profile, field by field.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from clag_server.memory import prompts
from clag_server.memory.annotate import fallback_cause
from clag_server.memory.lexical import tokens
from clag_server.memory.wording import clean, clean_words, leaked, loops, parrots, same_language
from clag_server.models.api import ModelError, Priority, SlmEngine
from clag_server.types.memory import FallbackCause, Memory

_TITLE_CHARACTERS = 80
_TITLE_WORDS = 6
_SUMMARY_CHARACTERS = 240
_TAG_CHARACTERS = 48
_TAGS = 8


@dataclass(frozen=True, slots=True)
class ProfileDraft:
    """What the SLM wrote of a cluster and passed the checks; empty where it did not."""

    title: str = ""
    summary: str = ""
    tags: tuple[str, ...] = ()
    fallback: FallbackCause = FallbackCause.NONE
    """Why there is no title: the draft counts as not made by the SLM."""


async def ask_profile(
    slm: SlmEngine, members: Sequence[Memory], taken: Collection[str], *, deadline_s: float | None = None
) -> ProfileDraft:
    """Ask the SLM once for a profile of memories (those that speak for the cluster first)."""
    texts = [prompts.spoken(memory.text, memory.speaker) for memory in members[: prompts.PROFILE_NOTES]]
    try:
        generation = await slm.generate(
            prompts.profile_prompt(texts),
            schema=prompts.PROFILE_SCHEMA,
            max_tokens=prompts.PROFILE_TOKENS,
            priority=Priority.ORGANIZE,
            deadline_s=deadline_s,
        )
    except ModelError as error:
        return ProfileDraft(fallback=fallback_cause(error))
    return parse_profile(generation.text, texts, taken)


def parse_profile(text: str, texts: Sequence[str], taken: Collection[str]) -> ProfileDraft:
    """Return what is usable of a model's answer about texts; `taken` are titles of other clusters."""
    start, end = text.find("{"), text.rfind("}")
    try:
        raw = json.loads(text[start : end + 1]) if 0 <= start < end else None
    except (ValueError, RecursionError):
        raw = None
    if not isinstance(raw, dict):
        return ProfileDraft(fallback=FallbackCause.INVALID_OUTPUT)
    known = frozenset(token for one in texts for token in tokens(one))
    title = _line(raw.get("title"), _TITLE_CHARACTERS, texts, known)
    others = {one.casefold() for one in taken}
    if not set(tokens(title)) & known or title.casefold() in others or _says_something(title):
        return ProfileDraft(fallback=FallbackCause.INVALID_OUTPUT)
    words = clean_words(raw.get("tags"), _TAG_CHARACTERS)
    tags = tuple(word for word in words if not parrots(word, known) and not leaked(word, known))
    return ProfileDraft(title, _line(raw.get("summary"), _SUMMARY_CHARACTERS, texts, known), tags[:_TAGS])


def _says_something(title: str) -> bool:
    """Return whether a title is a sentence, as somebody said it: a name is what is asked for."""
    return len(title.split()) > _TITLE_WORDS or any(c in title for c in ":;!?。！？") or ". " in title


def _line(raw: object, characters: int, texts: Sequence[str], known: Collection[str]) -> str:
    line = clean(raw, characters) if isinstance(raw, str) else ""
    if not any(c.isalpha() for c in line) or leaked(line, known) or parrots(line, known) or loops(line):
        return ""
    return line if same_language(line, texts) else ""
