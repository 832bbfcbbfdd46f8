"""The worker killed again and again under load: every caller must hear something."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from clag_server.models.api import ModelError, ModelUnavailableError

_HANGS_AFTER_S = 240.0
"""A call without answer or error for this long hangs: it fails the benchmark."""


@dataclass
class Heard:
    """What callers heard."""

    answered: int = 0
    kills: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def numbers(self) -> dict[str, float]:
        found: dict[str, float] = {"kills": self.kills, "kills_answered": self.answered, "kills_hung": 0}
        return found | {f"kills_{name}": count for name, count in self.errors.items()}


async def kill_under_load(
    pids: Callable[[], tuple[int, ...]], calls: Sequence[Callable[[], Awaitable[Any]]], count: int, most_s: float
) -> Heard:
    """Let callers call in a loop and kill the worker each time that one of them was answered again.

    Args:
        pids: The workers now.
        calls: One caller each.
        count: Kills.
        most_s: Fewer kills, where they take longer than this.

    Raises:
        TimeoutError: A call hung. An error that is not a model's is raised as it is.
    """
    heard = Heard()
    ended = asyncio.Event()

    async def caller(call: Callable[[], Awaitable[Any]]) -> None:
        while not ended.is_set():
            try:
                async with asyncio.timeout(_HANGS_AFTER_S):
                    await call()
                heard.answered += 1
            except ModelError as error:
                heard.errors[type(error).__name__] += 1
                wait_s = error.retry_after_s if isinstance(error, ModelUnavailableError) else None
                await asyncio.sleep(min(wait_s or 0.2, 0.5))

    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(caller(call))
        until_s = time.monotonic() + most_s
        while heard.kills < count and time.monotonic() < until_s:
            before = heard.answered
            while heard.answered < before + len(calls):  # noqa: ASYNC110 - counts of other tasks
                await asyncio.sleep(0.05)
            for pid in pids():
                os.kill(pid, signal.SIGKILL)
            heard.kills += 1
        ended.set()
    return heard
