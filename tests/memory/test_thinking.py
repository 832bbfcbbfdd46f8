"""Memories are thought about ahead of the round that writes them: in order, and never with words that are gone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from clag_server.memory.system import MemorySystem
from clag_server.models.api import Generation, Priority
from clag_server.models.schema import Schema
from clag_server.models.scripted import Script, ScriptedSlm
from clag_server.types.ingest import AckLevel
from clag_server.types.memory import AnnotationSource, Annotator, MemoryState
from tests.memory.builders import new
from tests.memory.system import NAMESPACE, get, rewrite, system_on, until

WORDS = ("dock", "lamp", "gate", "shelf", "crate", "ramp", "sensor", "gripper")


class Gated(ScriptedSlm):
    """Answers about a note when it is let go; tells what it was asked and what was given up."""

    def __init__(self, script: Script) -> None:
        super().__init__(lambda: script)
        self.gates = {word: asyncio.Event() for word in (*WORDS, "window")}
        self.asked: list[str] = []
        self.left: list[str] = []

    async def generate(
        self,
        prompt: str,
        *,
        schema: Schema | None = None,
        grammar: str | None = None,
        max_tokens: int,
        priority: Priority,
        deadline_s: float | None = None,
    ) -> Generation:
        note = prompt.split("<<<\n")[-1]
        word = next((one for one in self.gates if f"the {one} " in note), "")
        if word:
            self.asked.append(word)
            try:
                await self.gates[word].wait()
            except asyncio.CancelledError:
                self.left.append(word)
                raise
        return await super().generate(
            prompt,
            schema=schema,
            grammar=grammar,
            max_tokens=max_tokens,
            priority=priority,
            deadline_s=deadline_s,
        )


def annotated(prompt: str) -> str:
    words = json.loads(prompt.split("<<<\n")[-1].split("\n>>>\n")[0]).split()
    value = {"context": " ".join(words), "keywords": words[1:2], "tags": ["place"]}
    return json.dumps(value if "belong together" not in prompt else {})


async def told(system: MemorySystem, slm: Gated) -> None:
    """Store a note about each of the words, and wait until the SLM was asked about all."""
    pipeline = await system.registry.pipeline(NAMESPACE, create=True)
    pipeline._evolve._thinking._slm = slm
    for number, word in enumerate(WORDS):
        item = new(f"the {word} is blue", f"m{number}", session_id=f"s{number}")
        await system.create_memory(NAMESPACE, item, request_id="", level=AckLevel.SEARCHABLE)
    await asked(slm, len(WORDS))


async def asked(slm: Gated, count: int) -> None:
    async with asyncio.timeout(30):
        while len(slm.asked) < count:  # noqa: ASYNC110 - the double tells nobody
            await asyncio.sleep(0.005)


async def evolved(system: MemorySystem) -> list[str]:
    page, _ = await system.list_memories(NAMESPACE, where=None, after=0, limit=100, fresh_revision=0)
    return [m.memory_id for m in page.memories if m.state is MemoryState.EVOLVED]


def is_evolved(memory: object) -> bool:
    return getattr(memory, "state", None) is MemoryState.EVOLVED


async def test_the_oldest_are_written_while_later_ones_are_still_thought_about(tmp_path: Path) -> None:
    script = Script(generate=annotated)
    slm = Gated(script)
    async with system_on(tmp_path, script=script, annotate=Annotator.SLM, evolve_batch=8) as system:
        await told(system, slm)
        for word in ("lamp", "crate", "ramp"):  # not the oldest: what is behind it waits for it
            slm.gates[word].set()
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert await evolved(system) == []
        slm.gates["dock"].set()
        await until(system, "m1", is_evolved)
        assert sorted(await evolved(system)) == ["m0", "m1"]
        for gate in slm.gates.values():
            gate.set()
        await until(system, "m7", is_evolved)
        memories = [await get(system, f"m{number}") for number in range(len(WORDS))]
    # Nobody was asked about twice.
    assert sorted(slm.asked) == sorted(WORDS)
    assert [m.context for m in memories] == [f"the {word} is blue" for word in WORDS]


async def test_one_that_is_rewritten_while_it_is_thought_about_is_asked_about_again(tmp_path: Path) -> None:
    script = Script(generate=annotated)
    slm = Gated(script)
    async with system_on(tmp_path, script=script, annotate=Annotator.SLM, evolve_batch=8) as system:
        await told(system, slm)
        await system.edits.update(NAMESPACE, "m3", rewrite("the window is green"))
        for word in ("dock", "lamp", "gate"):
            slm.gates[word].set()
        await asked(slm, len(WORDS) + 1)
        for gate in slm.gates.values():
            gate.set()
        await until(system, "m7", is_evolved)
        await until(system, "m3", is_evolved)
        memory = await get(system, "m3")
    assert slm.asked[-1] == "window"
    assert "shelf" in slm.left
    assert (memory.context, memory.annotated_by) == ("the window is green", AnnotationSource.SLM)


async def test_a_stop_leaves_what_the_slm_is_being_asked_and_the_next_start_asks_again(tmp_path: Path) -> None:
    script = Script(generate=annotated)
    slm = Gated(script)
    async with asyncio.timeout(60):
        async with system_on(tmp_path, script=script, annotate=Annotator.SLM, evolve_batch=8) as system:
            await told(system, slm)
        assert sorted(slm.left) == sorted(WORDS)
        async with system_on(tmp_path, script=script, annotate=Annotator.SLM, evolve_batch=8) as system:
            await until(system, "m7", is_evolved)
            assert len(await evolved(system)) == len(WORDS)
