"""One request that the model cannot bear, among others in the same passes, in the real worker process (case M6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clag_server.children import RestartPolicy
from clag_server.models.api import (
    ChoiceOption,
    Generation,
    ModelError,
    ModelRequestRefusedError,
    ModelUnavailableError,
    Priority,
)
from clag_server.models.client import WorkerClient
from clag_server.models.worker_settings import WorkerSettings
from clag_server.models.worker_slm import WorkerSlm
from tests.models.tiny import tiny_folder

__all__ = ["tiny_folder"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

REPOSITORY = Path(__file__).resolve().parents[2]
LATER = Priority.ORGANIZE
NOTES = [f"note {i} about the dock and " + "its ramp " * (i % 4) for i in range(12)]
OPTIONS = [ChoiceOption("a", "the dock"), ChoiceOption("b", "the kitchen")]


@pytest.fixture
async def slm(tiny_folder: Path) -> AsyncIterator[WorkerSlm]:
    settings = WorkerSettings(None, str(tiny_folder), "cpu", "float32", 1, 256, 1, 0, 64, 64, 512, 4, 512, 128, 8)
    client = WorkerClient(
        settings,
        module="tests.models.poison_worker",
        env={"PYTHONPATH": str(REPOSITORY)},
        policy=RestartPolicy(first_delay_s=0.01, max_delay_s=0.02),
    )
    slm = WorkerSlm([client], name="tiny")
    await client.start()
    yield slm
    await client.stop()


async def ask_all(slm: WorkerSlm, notes: list[str]) -> list[Generation | BaseException]:
    calls = (slm.generate(note, max_tokens=10, priority=LATER, deadline_s=800) for note in notes)
    return await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize(
    ("letter", "error", "restarts"),
    [("~", ModelRequestRefusedError, 2), ("^", ModelUnavailableError, 0), ("|", ModelUnavailableError, 0)],
    ids=["ends the process", "breaks the pass", "breaks what follows the pass"],
)
async def test_a_poison_prompt_fails_alone_and_the_others_get_their_own_texts(
    slm: WorkerSlm, letter: str, error: type[ModelError], restarts: int
) -> None:
    expected = [one.text for one in await ask_all(slm, NOTES) if isinstance(one, Generation)]
    answers = await ask_all(slm, [*NOTES[:5], f"bad {letter} note", *NOTES[5:]])
    assert isinstance(answers.pop(5), error)
    assert [one.text for one in answers if isinstance(one, Generation)] == expected
    assert len(expected) == len(NOTES)
    assert slm.status.restarts == restarts


async def test_a_poison_choice_fails_alone(slm: WorkerSlm) -> None:
    texts = [*NOTES[:3], "bad ~ note", *NOTES[3:6]]
    answers = await asyncio.gather(
        *(slm.choose(text, OPTIONS, priority=LATER, deadline_s=800) for text in texts), return_exceptions=True
    )
    assert isinstance(answers.pop(3), ModelRequestRefusedError)
    assert not any(isinstance(one, BaseException) for one in answers)
    assert slm.status.restarts == 2
