"""What the embedder and the language model share when the model worker answers them: state and batches.

Each engine holds a `BatchQueue` and keeps at most a few batches in the worker: the worker never idles between
two of them, and an urgent call waits for at most one that has begun.
"""

from __future__ import annotations

import abc
import asyncio
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from clag_server.children import ChildState, ChildStatus
from clag_server.models import protocol
from clag_server.models.api import (
    EngineState,
    EngineStatus,
    ModelError,
    ModelRequestRefusedError,
    ModelUnavailableError,
    Priority,
    WrongShapeError,
)
from clag_server.models.batching import BatchQueue, Pending, answer_within

if TYPE_CHECKING:
    from clag_server.models.client import Answer, WorkerClient

__all__ = ["BYTES_PER_TOKEN", "Engine", "check_text"]

_BATCHES_IN_WORKER = 2
"""One that runs and one that waits in the worker; interactive batches may go over this by as many again."""

BYTES_PER_TOKEN = 3
"""For the estimate of a text's tokens before it is tokenized; the worker counts exactly."""

Q = TypeVar("Q")
A = TypeVar("A")


class Engine(abc.ABC, Generic[Q, A]):
    """State of one model and the batches of one kind of call that it has in the worker."""

    def __init__(self, client: WorkerClient, model: str, queue: BatchQueue[Q, A]) -> None:
        self._client = client
        self._queue = queue
        self._running = 0
        self._status = EngineStatus(EngineState.LOADING, model, "its process is starting")
        self._settled = asyncio.Event()

    @property
    def status(self) -> EngineStatus:
        """How the model stands now."""
        one = self._status
        return EngineStatus(
            one.state,
            one.model,
            one.reason,
            one.device,
            one.dtype,
            one.loads,
            self._client.child.restarts,
            len(self._queue),
            one.load_s,
        )

    def on_loaded(self, loaded: protocol.Loaded) -> None:
        """Hear that the model answers now."""
        self._set(EngineState.READY, "", loaded)
        self._queue.budget = loaded.batch_tokens
        self._pump()

    def on_not_loaded(self, reason: str) -> None:
        """Hear that the model cannot be loaded."""
        self._set(EngineState.ABSENT, reason)
        self._queue.fail_all(ModelUnavailableError(reason))

    def on_worker(self, status: ChildStatus) -> None:
        """Hear that the worker's state changed."""
        if status.state is ChildState.READY:
            return  # `on_loaded` follows for each model
        self._running = 0
        if status.state is ChildState.STARTING:
            self._set(EngineState.LOADING, "the weights are being read")
            return
        failed = status.state in (ChildState.FAILED, ChildState.STOPPED)
        self._set(EngineState.ABSENT if failed else EngineState.DEGRADED, status.reason)
        self._queue.fail_all(self._client.unavailable())

    def _set(self, state: EngineState, reason: str, loaded: protocol.Loaded | None = None) -> None:
        old = self._status
        if state is EngineState.LOADING:
            self._settled.clear()
        else:
            self._settled.set()
        self._status = EngineStatus(
            state,
            old.model,
            reason,
            loaded.device if loaded else old.device,
            loaded.dtype if loaded else old.dtype,
            old.loads + (loaded is not None),
            load_s=loaded.load_s if loaded else old.load_s,
        )

    async def wait_settled(self) -> EngineStatus:
        """Wait until the model is no longer LOADING, and return how it then stands."""
        await self._settled.wait()
        return self.status

    def _check_available(self) -> None:
        if self._status.state is EngineState.ABSENT:
            raise ModelUnavailableError(f"{self._status.model}: {self._status.reason}")
        if self._status.state is EngineState.DEGRADED:
            raise self._client.unavailable()

    async def _ask(self, calls: list[Pending[Q, A]], deadline_s: float | None) -> list[A]:
        """Queue calls and await all their answers; when the caller leaves, its calls leave the queue."""
        for call in calls:
            self._queue.put(call)
        self._pump()
        try:
            return await answer_within(asyncio.gather(*(call.answer for call in calls)), deadline_s)
        finally:
            for call in calls:
                call.answer.cancel()

    def _pump(self) -> None:
        """Send batches while the worker has room for them."""
        while self._status.state is EngineState.READY:
            least = Priority.BULK if self._running < _BATCHES_IN_WORKER else Priority.INTERACTIVE
            if self._running >= 2 * _BATCHES_IN_WORKER:
                return
            batch = self._queue.take(least)
            if not batch:
                return
            self._send(batch)

    def _send(self, batch: list[Pending[Q, A]]) -> None:
        sent_at_s = time.monotonic()

        def answer(got: Answer) -> None:
            self._running = max(self._running - 1, 0)
            try:
                self._deliver(batch, got, sent_at_s)
            except (WrongShapeError, protocol.FrameError) as error:
                fault = error if isinstance(error, ModelError) else WrongShapeError("a batch's answer", str(error))
                for call in batch:
                    call.fail(fault)
            self._pump()

        def fail(error: ModelError) -> None:
            self._running = max(self._running - 1, 0)
            wanted = [call for call in batch if call.wanted]
            if len(wanted) > 1 and self._status.state is EngineState.READY:
                # The worker is alive and refused the batch: halves find the one call that is at fault, and
                # fit where the whole was too large for the memory.
                middle = len(wanted) // 2
                self._send(wanted[:middle])
                self._send(wanted[middle:])
                return
            for call in wanted:
                call.fail(error)
            self._pump()

        self._running += 1
        try:
            self._client.send(self._frame(self._client.next_id(), batch), answer, fail)
        except ModelError as error:
            fail(error)

    @abc.abstractmethod
    def _frame(self, request_id: int, batch: list[Pending[Q, A]]) -> protocol.Embed | protocol.ChooseBatch:
        """Return the request of a batch."""

    @abc.abstractmethod
    def _deliver(self, batch: list[Pending[Q, A]], got: Answer, sent_at_s: float, /) -> None:
        """Check an answer and hand each call its part."""


def check_text(text: str) -> None:
    """Refuse a text that cannot be encoded.

    Raises:
        ModelRequestRefusedError: A lone surrogate, with its position.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ModelRequestRefusedError(f"a text is not valid Unicode at character {error.start}") from error
