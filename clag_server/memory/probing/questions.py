"""The bundled questions of the competence probe, written for it: nothing that defaults were tuned on.

A world of a choice has five clusters that share words and people, and one note and one question for each of them,
so that the right answer is at every place equally often. The notes often share more words with a wrong cluster.
Annotation and evolution questions say what a good answer holds, in several ways of saying it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from clag_server.types.memory import LinkKind

__all__ = [
    "AnnotationQuestion",
    "ChoiceQuestion",
    "EvolutionQuestion",
    "ProbeNeighbour",
    "Profile",
    "Questions",
    "bundled",
    "questions_hash",
]

_CHOICES: Final = ("choices_english.json", "choices_other.json")
_ANNOTATION: Final = "annotation.json"
_EVOLUTION: Final = "evolution.json"


@dataclass(frozen=True, slots=True)
class Profile:
    """A cluster as a language model sees it."""

    title: str
    summary: str
    tags: tuple[str, ...]
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChoiceQuestion:
    """A note or a question, the clusters it may belong to, and the index of the one it does.

    Attributes:
        name: Identity, stable over releases.
        world: Questions of one world share their clusters; they are judged together.
        text: The note (routing) or the question (selection).
        profiles: The candidates.
        right: Index of the right candidate.
        turned: Whether it is asked in a second order of the candidates.
    """

    name: str
    world: str
    text: str
    profiles: tuple[Profile, ...]
    right: int
    turned: bool = False


@dataclass(frozen=True, slots=True)
class AnnotationQuestion:
    """A note to annotate.

    Attributes:
        name: Identity.
        language: ISO 639-1 code of the note.
        text: The note.
        speaker: Who said it; "" for nobody.
        topic: Title of its cluster.
        keywords: Groups of words of the note; good keywords hold one of at least half of the groups.
        about: Words for what the note is about; a good annotation holds one of them.
        forbidden: Words that only an instruction inside the note would bring into context or tags.
    """

    name: str
    language: str
    text: str
    speaker: str
    topic: str
    keywords: tuple[tuple[str, ...], ...]
    about: tuple[str, ...]
    forbidden: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeNeighbour:
    """An older memory of the cluster, and the kinds of link from the new one that are right; none for no link."""

    text: str
    kinds: frozenset[LinkKind]


@dataclass(frozen=True, slots=True)
class EvolutionQuestion:
    """A new memory and its nearest neighbours, of which one is to be linked."""

    name: str
    language: str
    topic: str
    text: str
    neighbours: tuple[ProbeNeighbour, ...]


@dataclass(frozen=True, slots=True)
class Questions:
    """All that a model is asked."""

    routing: tuple[ChoiceQuestion, ...]
    selection: tuple[ChoiceQuestion, ...]
    annotation: tuple[AnnotationQuestion, ...]
    evolution: tuple[EvolutionQuestion, ...]


@cache
def bundled() -> Questions:
    """Return the questions that come with this version."""
    worlds = list(enumerate(world for name in _CHOICES for world in _read(name)))
    return Questions(
        routing=tuple(q for i, world in worlds for q in _choices(world, "note", turned=i % 3 == 0)),
        selection=tuple(q for i, world in worlds for q in _choices(world, "question", turned=i % 3 == 0)),
        annotation=tuple(_annotation(f"annotation {i}", raw) for i, raw in enumerate(_read(_ANNOTATION))),
        evolution=tuple(_evolution(i, raw) for i, raw in enumerate(_read(_EVOLUTION))),
    )


@cache
def questions_hash() -> str:
    """Return a hexadecimal hash of the bundled questions."""
    digest = hashlib.sha256()
    for name in (*_CHOICES, _ANNOTATION, _EVOLUTION):
        digest.update(_bytes(name))
    return digest.hexdigest()


def _choices(world: Mapping[str, Any], asked: str, *, turned: bool) -> Sequence[ChoiceQuestion]:
    clusters = world["clusters"]
    profiles = tuple(
        Profile(one["title"], one["summary"], tuple(one["tags"]), tuple(one["examples"])) for one in clusters
    )
    return [
        ChoiceQuestion(f"{world['world']} {asked} {right}", world["world"], one[asked], profiles, right, turned)
        for right, one in enumerate(clusters)
    ]


def _annotation(name: str, raw: Mapping[str, Any]) -> AnnotationQuestion:
    return AnnotationQuestion(
        name=name,
        language=raw["language"],
        text=raw["note"],
        speaker=raw["speaker"],
        topic=raw["topic"],
        keywords=tuple(tuple(group) for group in raw["keywords"]),
        about=tuple(raw["about"]),
        forbidden=tuple(raw.get("forbidden", ())),
    )


def _evolution(number: int, raw: Mapping[str, Any]) -> EvolutionQuestion:
    neighbours = [
        ProbeNeighbour(one["note"], frozenset(LinkKind[kind] for kind in one["link"])) for one in raw["neighbours"]
    ]
    # The one to link stands at every place equally often over the questions.
    related = next(i for i, one in enumerate(neighbours) if one.kinds)
    turn = (related - number) % len(neighbours)
    shown = (*neighbours[turn:], *neighbours[:turn])
    return EvolutionQuestion(f"evolution {number}", raw["language"], raw["topic"], raw["note"], shown)


def _read(name: str) -> list[Any]:
    parsed: list[Any] = json.loads(_bytes(name))
    return parsed


def _bytes(name: str) -> bytes:
    return files("clag_server.memory.probing").joinpath("questions", name).read_bytes()
