"""A synthetic life of any length: sessions of 20 memories about topics, the same for the same seed.

Every session is about one topic; a topic comes back in sessions far apart, and there are about `PER_TOPIC` memories
to each topic however many memories there are, so a larger corpus is a longer life and not a denser one. Vectors of
one topic have a cosine of about 0.6 to each other, those of different topics about 0. Words come from the topic (of
50 words of its own) and from a shared vocabulary whose most frequent word is in 2.5% of the texts, as content words
of English are once stop words are gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from clag.v1 import types_pb2
from numpy.typing import NDArray

DIM: Final = 384
SESSION: Final = 20
PER_TOPIC: Final = 200
_SYLLABLES: Final = [a + b for a in "bcdfghjklmnprstvwz" for b in "aeiou"]
_SHARED: Final = 5_000
_SHIFT: Final = 50
_KINDS: Final = 2**40


@dataclass(frozen=True, slots=True)
class Question:
    """A query of words and vector about one memory."""

    text: str
    vector: NDArray[np.float32]
    session: int


def _word(number: int) -> str:
    parts = []
    for _ in range(3):
        number, rest = divmod(number, len(_SYLLABLES))
        parts.append(_SYLLABLES[rest])
    return "".join(parts)


@lru_cache(maxsize=1)
def _shared_words() -> tuple[list[str], NDArray[np.float64]]:
    shares = np.cumsum(1.0 / (np.arange(_SHARED) + _SHIFT))
    return [_word(i) for i in range(_SHARED)], shares / shares[-1]


@lru_cache(maxsize=20_000)
def _topic(seed: int, number: int) -> tuple[NDArray[np.float32], list[str]]:
    rng = np.random.default_rng([seed, _KINDS + number])
    words = [_word(int(i)) for i in rng.integers(_SHARED, len(_SYLLABLES) ** 3, 50)]
    return _unit(rng.standard_normal(DIM)), words


def _unit(vector: NDArray[np.float64]) -> NDArray[np.float32]:
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def _session(seed: int, number: int) -> tuple[NDArray[np.float32], list[str]]:
    """Return the vectors (SESSION, DIM) and texts of one session."""
    rng = np.random.default_rng([seed, number])
    topics = max(5, (number + 1) * SESSION // PER_TOPIC)
    center, own = _topic(seed, int(rng.integers(topics)))
    noise = rng.standard_normal((SESSION, DIM)) / np.sqrt(DIM)
    vectors = center + 0.5 * _unit(rng.standard_normal(DIM)) + 0.6 * noise
    shared, shares = _shared_words()
    drawn = np.searchsorted(shares, rng.random((SESSION, 6)))
    mine = rng.integers(len(own), size=(SESSION, 6))
    texts = [
        " ".join([f"n{number * SESSION + i}", *(own[j] for j in mine[i]), *(shared[j] for j in drawn[i])])
        for i in range(SESSION)
    ]
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), texts


def memories(start: int, stop: int, *, seed: int = 7) -> Iterator[types_pb2.MemoryInput]:
    """Yield memories `start` to `stop` (multiples of SESSION), eight sessions interleaved as agents at work do."""
    for first in range(start // SESSION, stop // SESSION, 8):
        block = [(s, *_session(seed, s)) for s in range(first, min(first + 8, stop // SESSION))]
        for i in range(SESSION):
            for number, vectors, texts in block:
                yield types_pb2.MemoryInput(
                    memory_id=f"m{number * SESSION + i}",
                    text=texts[i],
                    speaker="robot",
                    session_id=f"s{number}",
                    kind=types_pb2.MEMORY_KIND_OBSERVATION,
                    embedding=vectors[i],
                )


def questions(count: int, size: int, *, seed: int = 7) -> list[Question]:
    """Make queries about random memories of the first `size`: words of the topic, shared words, a near vector."""
    rng = np.random.default_rng([seed, size, count])
    asked = []
    for _ in range(count):
        number = int(rng.integers(size // SESSION))
        vectors, texts = _session(seed, number)
        i = int(rng.integers(SESSION))
        words = texts[i].split()
        noise = rng.standard_normal(DIM) / np.sqrt(DIM)
        asked.append(Question(" ".join([*words[1:4], *words[7:9]]), _unit(vectors[i] + 0.5 * noise), number))
    return asked
