"""The small language model as the domain sees it, answered by the model worker."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

from clag_server.models import protocol
from clag_server.models.api import (
    ChoiceOption,
    ChoiceResult,
    EngineState,
    Generation,
    ModelError,
    ModelRequestRefusedError,
    ModelTimeoutError,
    Priority,
    Usage,
    WrongShapeError,
)
from clag_server.models.batching import BatchQueue, Pending
from clag_server.models.engine import BYTES_PER_TOKEN, Engine, check_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clag_server.models.client import Answer, WorkerClient

__all__ = ["WorkerSlm"]


class _Call:
    """The question of one `choose`."""

    __slots__ = ("options", "text")

    def __init__(self, text: str, options: Sequence[ChoiceOption]) -> None:
        self.text = text
        self.options = [(option.key, option.head) for option in options]


class WorkerSlm(Engine[_Call, ChoiceResult]):
    """`SlmEngine` over the model worker.

    Args:
        client: The worker.
        name: Name of the model.
    """

    def __init__(self, client: WorkerClient, *, name: str) -> None:
        super().__init__(client, name, BatchQueue(budget=1024, max_calls=64))
        client.listen("slm", self)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._status.model

    async def choose(
        self,
        text: str,
        options: Sequence[ChoiceOption],
        *,
        priority: Priority,
        deadline_s: float | None = None,
    ) -> ChoiceResult:
        """Score options; see `SlmEngine.choose`."""
        if not text.strip():
            raise ModelRequestRefusedError("the text to score is empty")
        if not options or any(not option.head.strip() for option in options):
            raise ModelRequestRefusedError("a choice needs at least one option, each with a head")
        check_text(text)
        for option in options:
            check_text(option.key)
            check_text(option.head)
        self._check_available()
        size = (len(text) // BYTES_PER_TOKEN + 1) * len(options)
        until_s = None if deadline_s is None else time.monotonic() + deadline_s
        future: asyncio.Future[ChoiceResult] = asyncio.get_running_loop().create_future()
        return (await self._ask([Pending(_Call(text, options), size, priority, until_s, future)], deadline_s))[0]

    async def generate(
        self,
        prompt: str,
        *,
        grammar: str | None,
        max_tokens: int,
        priority: Priority,
        deadline_s: float | None = None,
    ) -> Generation:
        """Continue a prompt; see `SlmEngine.generate`."""
        if not prompt.strip():
            raise ModelRequestRefusedError("the prompt is empty")
        if max_tokens < 1:
            raise ModelRequestRefusedError(f"max_tokens is {max_tokens}, it must be at least 1")
        check_text(prompt)
        self._check_available()
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        asked_at_s = time.monotonic()

        def answer(got: Answer) -> None:
            if not isinstance(got, protocol.Text):
                fail(WrongShapeError("a text", type(got).__name__))
            elif not future.done():
                queue_s = max(time.monotonic() - asked_at_s - got.compute_s, 0.0)
                usage = Usage(got.tokens_in, got.tokens_out, queue_s, got.compute_s)
                future.set_result(Generation(got.text, got.finished, usage))

        def fail(error: ModelError) -> None:
            if not future.done():
                future.set_exception(error)

        request_id = self._client.next_id()
        # Generations are batched in the worker, step by step, so each goes there at once.
        frame = protocol.Generate(request_id, int(priority), prompt, grammar, max_tokens)
        try:
            async with asyncio.timeout(deadline_s):
                while (await self.wait_settled()).state is not EngineState.READY:
                    self._check_available()
                self._client.send(frame, answer, fail)
                return await future
        except TimeoutError:
            raise ModelTimeoutError(deadline_s or 0.0) from None
        finally:
            self._client.cancel(request_id)

    def _frame(self, request_id: int, batch: list[Pending[_Call, ChoiceResult]]) -> protocol.ChooseBatch:
        return protocol.ChooseBatch(
            request_id,
            int(batch[0].priority),
            [call.question.text for call in batch],
            [call.question.options for call in batch],
        )

    def _deliver(self, batch: list[Pending[_Call, ChoiceResult]], got: Answer, sent_at_s: float, /) -> None:
        if not isinstance(got, protocol.Scores):
            raise WrongShapeError("scores", type(got).__name__)
        if not len(got.scores) == len(got.clipped) == len(got.tokens_in) == len(batch):
            raise WrongShapeError(f"{len(batch)} calls", f"{len(got.scores)} calls")
        for i, call in enumerate(batch):
            scores = tuple(map(float, got.scores[i]))
            if len(scores) != len(call.question.options) or not all(map(math.isfinite, scores)):
                call.fail(WrongShapeError(f"{len(call.question.options)} finite scores", str(scores)[:200]))
                continue
            usage = Usage(got.tokens_in[i], 0, max(sent_at_s - call.queued_at_s, 0.0), got.compute_s)
            call.resolve(ChoiceResult(scores, usage, got.clipped[i]))
