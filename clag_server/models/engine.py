"""What the embedder and the language model share when model workers answer them."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from clag_server.models.batching import Pending, answer_within
from clag_server.models.errors import ModelError, ModelRequestRefusedError
from clag_server.models.lanes import Lanes
from clag_server.models.meter import Meter

if TYPE_CHECKING:
    from clag_server.models.api import Priority
    from clag_server.models.client import WorkerClient
    from clag_server.models.dispatch import Dispatcher
    from clag_server.models.status import EngineStatus

__all__ = ["BATCHES_IN_HAND", "BYTES_PER_TOKEN", "Engine", "check_text", "pending"]

BATCHES_IN_HAND = 2
"""One that a worker runs and one that waits there; interactive batches may go over this by as many again."""

BYTES_PER_TOKEN = 3
"""For the estimate of a text's tokens before it is tokenized; the worker counts exactly."""

Q = TypeVar("Q")
A = TypeVar("A")


class Engine:
    """One model behind one or more workers: how it stands, what it did, and its queues.

    Args:
        clients: The workers.
        kind: What the workers call the model, `embedder` or `slm`.
        model: Its name, for people.
    """

    def __init__(self, clients: Sequence[WorkerClient], *, kind: str, model: str) -> None:
        self._lanes = Lanes(clients, kind=kind, model=model)
        self._meter = Meter()

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._lanes.model

    @property
    def status(self) -> EngineStatus:
        """How the model stands now."""
        waiting = self._waiting()
        status = self._lanes.status(queue_depth=sum(waiting.values()))
        metrics = self._meter.snapshot(
            waiting, prefix_hits=self._lanes.prefix_hits, prefix_misses=self._lanes.prefix_misses
        )
        return dataclasses.replace(status, metrics=metrics)

    async def wait_settled(self) -> EngineStatus:
        """Wait until the model is no longer LOADING, and return how it then stands."""
        await self._lanes.wait_settled()
        return self.status

    def _waiting(self) -> Counter[str]:
        """Return how many calls wait for a batch, by priority."""
        return Counter()

    async def _ask(
        self, dispatcher: Dispatcher[Q, A], calls: list[Pending[Q, A]], deadline_s: float | None
    ) -> list[A]:
        """Queue calls and await all their answers; when the caller leaves, its calls leave queue and worker.

        Raises:
            ModelError: What the first call that failed raises; it is counted.
        """
        with self._metered():
            self._lanes.check_available()
            dispatcher.put(calls)
            try:
                return await answer_within(asyncio.gather(*(call.answer for call in calls)), deadline_s)
            finally:
                for call in calls:
                    call.answer.cancel()

    @contextmanager
    def _metered(self) -> Iterator[None]:
        """Count what a call raises on purpose."""
        try:
            yield
        except ModelError as error:
            self._meter.failed(error)
            raise


def pending(question: Q, size: int, priority: Priority, deadline_s: float | None) -> Pending[Q, A]:
    """Return a call that waits.

    Args:
        question: What is asked.
        size: Estimated tokens.
        priority: Who waits.
        deadline_s: Longest wait from now in seconds.
    """
    until_s = None if deadline_s is None else time.monotonic() + deadline_s
    return Pending(question, size, priority, until_s, asyncio.get_running_loop().create_future())


def check_text(text: str) -> None:
    """Refuse a text that cannot be encoded.

    Raises:
        ModelRequestRefusedError: A lone surrogate, with its position.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ModelRequestRefusedError(f"a text is not valid Unicode at character {error.start}") from error
