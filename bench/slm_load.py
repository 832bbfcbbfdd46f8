"""Loads on the engine: many callers, one caller under bulk work, a mix of random lengths.

Every load is bounded in time as well as in number: callers take no new item after it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, TypeVar

import numpy as np
import psutil

from bench.slm_kills import Heard, kill_under_load
from bench.slm_work import (
    ANNOTATION,
    ANNOTATION_TOKENS,
    HOSTILE,
    HOSTILE_ANSWER,
    HOSTILE_TOKENS,
    annotation_prompts,
    notes,
    options,
    random_requests,
)
from clag_server.models.api import Generation, Priority, UnusableOutputError
from clag_server.models.factory import ModelHost

T = TypeVar("T")
R = TypeVar("R")

_MANY = 20_000


async def by_callers(
    callers: int, items: Iterable[T], call: Callable[[T], Awaitable[R]], most_s: float
) -> tuple[float, list[R]]:
    """Let `callers` share the items, each waiting for its answer before the next.

    Returns:
        Seconds until the last answer, and the answers in the order in which they came.
    """
    waiting = iter(items)
    answers: list[R] = []
    started = time.perf_counter()

    async def caller() -> None:
        while time.perf_counter() - started < most_s:
            try:
                item = next(waiting)
            except StopIteration:
                return
            answers.append(await call(item))

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller())
    return time.perf_counter() - started, answers


@dataclass
class Waits:
    """How long single calls took, in milliseconds."""

    ms: list[float]

    def numbers(self, name: str) -> dict[str, float]:
        p50, p99 = np.percentile(self.ms, (50, 99))
        return {f"{name}_p50_ms": float(p50), f"{name}_p99_ms": float(p99), f"{name}_calls": len(self.ms)}


@dataclass
class Load:
    host: ModelHost

    async def choose(self, text: str, priority: Priority = Priority.ORGANIZE) -> tuple[float, ...]:
        return (await self.host.slm.choose(text, options(), priority=priority)).scores

    async def annotate(self, prompt: str, priority: Priority = Priority.ORGANIZE) -> Generation:
        return await self.host.slm.generate(
            prompt, schema=ANNOTATION, max_tokens=ANNOTATION_TOKENS, priority=priority
        )

    async def embed_one(self, text: str, priority: Priority = Priority.BULK) -> None:
        await self.host.embedder.embed([text], priority=priority)

    async def choices_per_s(self, callers: int, most_s: float) -> float:
        seconds, answers = await by_callers(callers, notes(_MANY), self.choose, most_s)
        return len(answers) / seconds

    async def equal_choices_per_s(self, callers: int, most_s: float) -> float:
        """Choices a second about one note: what a static batch does too."""
        seconds, answers = await by_callers(callers, notes(1) * _MANY, self.choose, most_s)
        return len(answers) / seconds

    async def generations_per_s(self, callers: int, most_s: float) -> tuple[float, float]:
        """Generations a second, and tokens of one."""
        seconds, answers = await by_callers(callers, annotation_prompts(notes(_MANY)), self.annotate, most_s)
        return len(answers) / seconds, float(np.mean([one.usage.tokens_out for one in answers]))

    async def tokens_per_s(self, prompt: str, count: int, tokens: int) -> float:
        """Tokens written a second for equal prompts, nothing constrained: what a static batch does too."""

        async def free(one: str) -> Generation:
            return await self.host.slm.generate(one, max_tokens=tokens, priority=Priority.ORGANIZE)

        seconds, answers = await by_callers(count, [prompt] * count, free, 300)
        return sum(one.usage.tokens_out for one in answers) / seconds

    async def choice_ms(self, count: int, most_s: float) -> Waits:
        """One interactive choice after the other."""
        return await _timed(count, most_s, lambda text: self.choose(text, Priority.INTERACTIVE))

    async def choice_ms_under_bulk(self, count: int, most_s: float, *, bulk: int) -> Waits:
        """The same while bulk generations wait, always as many."""
        prompts = cycle(annotation_prompts(notes(bulk)))
        async with busy(bulk, lambda: self.annotate(next(prompts), Priority.BULK)):
            return await self.choice_ms(count, most_s)

    async def embed_ms(self, count: int, most_s: float) -> Waits:
        """One interactive embedding of a question after the other."""
        return await _timed(count, most_s, lambda text: self.embed_one(text, Priority.INTERACTIVE))

    async def embed_ms_under_bulk(self, count: int, most_s: float, *, bulk: int) -> Waits:
        """The same while bulk texts of all lengths wait, always as many."""
        texts = cycle([text for kind, text in random_requests(4 * bulk) if kind == "embed"])
        async with busy(bulk, lambda: self.embed_one(next(texts))):
            return await self.embed_ms(count, most_s)

    async def everything(self, most_s: float) -> None:
        """Keep the engine full: choices, generations and embeddings of many callers at once."""
        async with asyncio.TaskGroup() as group:
            group.create_task(by_callers(32, notes(_MANY), self.choose, most_s))
            group.create_task(by_callers(64, annotation_prompts(notes(_MANY)), self.annotate, most_s))
            group.create_task(by_callers(256, notes(_MANY), self.embed_one, most_s))

    async def valid(self, count: int, most_s: float) -> tuple[int, int]:
        """Return how many answers about hostile notes are values of the schema, and of how many."""
        draw = random.Random(3)
        tails = notes(20)
        texts = [draw.choice(HOSTILE) + draw.choice(tails)[: draw.randrange(80)] for _ in range(count)]

        async def valid(prompt: str) -> bool:
            try:
                await self.host.slm.generate(
                    prompt, schema=HOSTILE_ANSWER, max_tokens=HOSTILE_TOKENS, priority=Priority.ORGANIZE
                )
            except UnusableOutputError:
                return False
            return True

        _, answers = await by_callers(64, annotation_prompts(texts), valid, most_s)
        return sum(answers), len(answers)

    async def memory_mib(self, count: int, most_s: float) -> tuple[float, float, int]:
        """Memory of the worker after a quarter of random requests and after all, and how many there were."""

        async def one(request: tuple[str, str]) -> None:
            kind, text = request
            if kind == "embed":
                await self.embed_one(text)
            elif kind == "choose":
                await self.host.slm.choose(text, options()[:2], priority=Priority.ORGANIZE)
            else:
                await self.host.slm.generate(text, max_tokens=1 + len(text) % 8, priority=Priority.ORGANIZE)

        requests = iter(random_requests(count))
        _, first = await by_callers(48, islice(requests, count // 4), one, most_s / 4)
        quarter = self._rss_mib()
        _, rest = await by_callers(48, requests, one, 3 * most_s / 4)
        return quarter, self._rss_mib(), len(first) + len(rest)

    async def kills(self, count: int, most_s: float) -> Heard:
        """Kill the worker under load."""
        prompts, texts = cycle(annotation_prompts(notes(200))), cycle(notes(500))
        calls: list[Callable[[], Awaitable[Any]]] = [
            *[lambda: self.choose(next(texts))] * 12,
            *[lambda: self.annotate(next(prompts))] * 12,
            *[lambda: self.embed_one(next(texts))] * 12,
        ]
        return await kill_under_load(lambda: self.host.worker_pids, calls, count, most_s)

    def _rss_mib(self) -> float:
        return sum(psutil.Process(pid).memory_info().rss for pid in self.host.worker_pids) / (1 << 20)


async def _timed(count: int, most_s: float, call: Callable[[str], Awaitable[Any]]) -> Waits:
    taken = []

    async def one(text: str) -> None:
        started = time.perf_counter()
        await call(text)
        taken.append((time.perf_counter() - started) * 1000)

    await by_callers(1, notes(count), one, most_s)
    return Waits(taken)


@asynccontextmanager
async def busy(callers: int, call: Callable[[], Coroutine[Any, Any, Any]]) -> AsyncIterator[None]:
    """Keep so many calls waiting; the block begins when the first was answered."""

    async def for_ever(first: asyncio.Event) -> None:
        while True:
            await call()
            first.set()

    first = asyncio.Event()
    tasks = [asyncio.create_task(for_ever(first)) for _ in range(callers)]
    try:
        await first.wait()
        yield
        for task in tasks:
            if task.done():  # they end only by an error, and then there was no load
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
