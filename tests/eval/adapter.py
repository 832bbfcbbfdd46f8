"""A system outside, as a user would write its adapter: it finds memories that share a word with the question."""

from __future__ import annotations

from clag_eval.data import Memory


class WordSystem:
    """Remembers everything."""

    name = "words"

    def __init__(self) -> None:
        self._memories: list[Memory] = []

    async def reset(self) -> None:
        self._memories.clear()

    async def add(self, memory: Memory) -> None:
        self._memories.append(memory)

    async def search(self, question: str, limit: int) -> list[str]:
        asked = set(question.lower().strip("?").split())
        found = [(len(asked & set(one.text.lower().split())), one.id) for one in self._memories]
        return [name for shared, name in sorted(found, key=lambda pair: -pair[0]) if shared][:limit]


class LyingSystem(WordSystem):
    """Names memories that nobody gave it."""

    async def search(self, question: str, limit: int) -> list[str]:
        return ["m-unknown"]
