"""Loads on the engine: many callers, a mix of random lengths, kills."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import psutil

from bench.slm_work import (
    ANNOTATION,
    ANNOTATION_TOKENS,
    HOSTILE,
    annotation_prompts,
    notes,
    options,
    random_requests,
)
from clag_server.models.api import Generation, ModelError, ModelUnavailableError, Priority, UnusableOutputError
from clag_server.models.factory import ModelHost

T = TypeVar("T")
R = TypeVar("R")


async def by_callers(callers: int, items: Sequence[T], call: Callable[[T], Awaitable[R]]) -> tuple[float, list[R]]:
    """Let `callers` share the items, each waiting for its answer before the next; return seconds and answers."""
    waiting = list(enumerate(items))[::-1]
    answers: dict[int, R] = {}

    async def caller() -> None:
        while waiting:
            i, item = waiting.pop()
            answers[i] = await call(item)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller())
    return time.perf_counter() - started, [answers[i] for i in range(len(items))]


@dataclass
class Load:
    host: ModelHost

    async def choose(self, text: str, priority: Priority = Priority.ORGANIZE) -> tuple[float, ...]:
        return (await self.host.slm.choose(text, options(), priority=priority)).scores

    async def annotate(self, prompt: str, priority: Priority = Priority.ORGANIZE) -> Generation:
        return await self.host.slm.generate(
            prompt, schema=ANNOTATION, max_tokens=ANNOTATION_TOKENS, priority=priority
        )

    async def choices_per_s(self, callers: int, count: int) -> float:
        seconds, _ = await by_callers(callers, notes(count), self.choose)
        return count / seconds

    async def generations_per_s(self, callers: int, count: int) -> tuple[float, float]:
        """Generations a second, and tokens of one."""
        seconds, answers = await by_callers(callers, annotation_prompts(notes(count)), self.annotate)
        return count / seconds, float(np.mean([one.usage.tokens_out for one in answers]))

    async def tokens_per_s(self, prompt: str, count: int, tokens: int) -> float:
        """Tokens written a second for equal prompts, nothing constrained: what a static batch does too."""

        async def free(one: str) -> Generation:
            return await self.host.slm.generate(one, max_tokens=tokens, priority=Priority.ORGANIZE)

        seconds, answers = await by_callers(count, [prompt] * count, free)
        return sum(one.usage.tokens_out for one in answers) / seconds

    async def choice_ms(self, count: int) -> tuple[float, float]:
        """p50 and p99 of one interactive choice after the other."""
        taken = []
        for text in notes(count):
            started = time.perf_counter()
            await self.choose(text, Priority.INTERACTIVE)
            taken.append((time.perf_counter() - started) * 1000)
        return float(np.percentile(taken, 50)), float(np.percentile(taken, 99))

    async def choice_ms_under_bulk(self, count: int, bulk: int) -> tuple[float, float]:
        """The same while bulk generations wait."""
        work = [
            asyncio.create_task(self.annotate(prompt, Priority.BULK)) for prompt in annotation_prompts(notes(bulk))
        ]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            measured = await self.choice_ms(count)
            if all(one.done() for one in work):
                raise RuntimeError("the bulk work ended before the measurement")
            return measured
        finally:
            for one in work:
                one.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def valid_share(self, count: int) -> float:
        """Share of hostile notes whose annotation is a value of the schema."""
        draw = random.Random(3)
        texts = [draw.choice(HOSTILE) + draw.choice(notes(20))[: draw.randrange(80)] for _ in range(count)]

        async def valid(prompt: str) -> bool:
            try:
                await self.annotate(prompt)
            except UnusableOutputError:
                return False
            return True

        _, answers = await by_callers(64, annotation_prompts(texts), valid)
        return sum(answers) / count

    async def memory_mib(self, count: int) -> tuple[float, float]:
        """Memory of the worker after a quarter of random requests, and after all."""
        requests = random_requests(count)

        async def one(request: tuple[str, str]) -> None:
            kind, text = request
            if kind == "embed":
                await self.host.embedder.embed([text], priority=Priority.BULK)
            elif kind == "choose":
                await self.choose(text)
            else:
                await self.host.slm.generate(text, max_tokens=1 + len(text) % 12, priority=Priority.ORGANIZE)

        await by_callers(48, requests[: count // 4], one)
        before = self._rss_mib()
        await by_callers(48, requests[count // 4 :], one)
        return before, self._rss_mib()

    def _rss_mib(self) -> float:
        return sum(psutil.Process(pid).memory_info().rss for pid in self.host.worker_pids) / (1 << 20)

    async def kills(self, count: int) -> tuple[int, int]:
        """Kill the worker under load; return how many calls were answered and how many got a typed error."""
        answered = failed = 0
        ended = asyncio.Event()

        async def caller(text: str) -> None:
            nonlocal answered, failed
            while not ended.is_set():
                try:
                    async with asyncio.timeout(240):  # a caller that hangs fails the benchmark
                        await self.choose(text)
                    answered += 1
                except ModelError as error:
                    failed += 1
                    wait_s = error.retry_after_s if isinstance(error, ModelUnavailableError) else None
                    await asyncio.sleep(min(wait_s or 0.2, 0.5))

        async with asyncio.TaskGroup() as group:
            for text in notes(16):
                group.create_task(caller(text))
            for _ in range(count):
                before = answered
                while answered <= before:  # noqa: ASYNC110 - counts of other tasks
                    await asyncio.sleep(0.05)
                for pid in self.host.worker_pids:
                    os.kill(pid, signal.SIGKILL)
            ended.set()
        return answered, failed
