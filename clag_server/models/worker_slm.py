"""The small language model as the domain sees it, answered by model workers."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clag_server.models import protocol
from clag_server.models.api import ChoiceOption, ChoiceResult, Generation, Priority, Usage
from clag_server.models.batching import BatchQueue, Pending
from clag_server.models.dispatch import Dispatcher
from clag_server.models.engine import BATCHES_IN_HAND, BYTES_PER_TOKEN, Engine, check_text, pending
from clag_server.models.errors import ModelRequestRefusedError, WrongShapeError
from clag_server.models.schema import ending_of, grammar_of, parse

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from clag_server.models.client import Answer, WorkerClient
    from clag_server.models.lanes import Lane
    from clag_server.models.schema import Schema

__all__ = ["WorkerSlm"]

_KEPT_GRAMMARS = 64
_PASSES_OF_A_BATCH = 4
"""Full passes that a batch of choices is sent for: with one, its last rows took a nearly empty second pass. Urgent
calls run between the layers of a pass, so they do not wait for the batch."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """The question of one `choose`."""

    text: str
    options: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _Prompt:
    """The question of one `generate` or `stream`."""

    prompt: str
    grammar: str | None
    max_tokens: int
    ending: str = ""
    pieces: asyncio.Queue[str] | None = None
    """Where the pieces of a streamed text go."""


class WorkerSlm(Engine):
    """`SlmEngine` over model workers.

    Args:
        clients: The workers.
        name: Name of the model.
    """

    def __init__(self, clients: Sequence[WorkerClient], *, name: str) -> None:
        super().__init__(clients, kind="slm", model=name)
        self._grammars: dict[Schema, str] = {}
        self._lanes.watch(self._set_budget)  # before the dispatcher's own: it sends at once
        self._choices: Dispatcher[_Choice, ChoiceResult] = Dispatcher(
            self._lanes,
            BatchQueue(budget=1024, max_calls=64),
            frame=_choice_frame,
            deliver=self._deliver_scores,
            in_hand=lambda _: BATCHES_IN_HAND,
            key=lambda choice: choice.text,
        )
        # Generations are batched in the worker, pass by pass. It holds twice what it runs, so that it can choose
        # prompts of similar length; the others wait here, where every worker can take them.
        self._generations: Dispatcher[_Prompt, Generation] = Dispatcher(
            self._lanes,
            BatchQueue(budget=1, max_calls=1),
            frame=_generate_frame,
            deliver=self._deliver_text,
            in_hand=lambda lane: 2 * lane.loaded.slots if lane.loaded else 1,
            key=lambda prompt: prompt.prompt,
            piece=_put_piece,
        )

    async def choose(
        self,
        text: str,
        options: Sequence[ChoiceOption],
        *,
        priority: Priority,
        deadline_s: float | None = None,
    ) -> ChoiceResult:
        """Score options; see `SlmEngine.choose`."""
        with self._metered():
            if not text.strip():
                raise ModelRequestRefusedError("the text to score is empty")
            if not options or any(not option.head.strip() for option in options):
                raise ModelRequestRefusedError("a choice needs at least one option, each with a head")
            check_text(text)
            for option in options:
                check_text(option.key)
                check_text(option.head)
        size = (len(text) // BYTES_PER_TOKEN + 1) * len(options)
        question = _Choice(text, [(option.key, option.head) for option in options])
        call: Pending[_Choice, ChoiceResult] = pending(question, size, priority, deadline_s)
        result = (await self._ask(self._choices, [call], deadline_s))[0]
        self._meter.answered(result.usage)
        return result

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
        """Continue a prompt; see `SlmEngine.generate`."""
        with self._metered():
            _check_prompt(prompt, max_tokens)
            if schema is not None:
                if grammar is not None:
                    raise ModelRequestRefusedError("a generation follows a schema or a grammar, not both")
                grammar = self._grammar_of(schema)
        question = _Prompt(prompt, grammar, max_tokens, ending_of(schema) if schema is not None else "")
        generation = await self._generation(question, priority, deadline_s)
        if schema is None:
            return generation
        with self._metered():
            value = parse(schema, generation.text, finished=generation.finished)
        return replace(generation, value=value)

    async def stream(
        self,
        prompt: str,
        *,
        max_tokens: int,
        priority: Priority,
        deadline_s: float | None = None,
    ) -> AsyncGenerator[str]:
        """Continue a prompt piece by piece; see `SlmEngine.stream`."""
        with self._metered():
            _check_prompt(prompt, max_tokens)
        pieces: asyncio.Queue[str] = asyncio.Queue()
        question = _Prompt(prompt, None, max_tokens, pieces=pieces)
        whole = asyncio.create_task(self._generation(question, priority, deadline_s), name="streamed generation")
        try:
            while not whole.done() or not pieces.empty():
                waiting = asyncio.create_task(pieces.get())
                try:
                    await asyncio.wait({waiting, whole}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not waiting.done():
                        waiting.cancel()
                if waiting.done() and not waiting.cancelled():
                    yield waiting.result()
            await whole
        finally:
            whole.cancel()
            await asyncio.gather(whole, return_exceptions=True)

    async def _generation(self, question: _Prompt, priority: Priority, deadline_s: float | None) -> Generation:
        size = len(question.prompt) // BYTES_PER_TOKEN + question.max_tokens
        call: Pending[_Prompt, Generation] = pending(question, size, priority, deadline_s)
        generation = (await self._ask(self._generations, [call], deadline_s))[0]
        self._meter.answered(generation.usage)
        return generation

    def _grammar_of(self, schema: Schema) -> str:
        grammar = self._grammars.get(schema)
        if grammar is None:
            grammar = self._grammars[schema] = grammar_of(schema)
            if len(self._grammars) > _KEPT_GRAMMARS:
                del self._grammars[next(iter(self._grammars))]
        return grammar

    def _waiting(self) -> Counter[str]:
        return Counter(self._choices.queue.waiting()) + Counter(self._generations.queue.waiting())

    def _set_budget(self, lane: Lane) -> None:
        if lane.loaded is not None:
            self._choices.queue.budget = _PASSES_OF_A_BATCH * lane.loaded.batch_tokens

    def _deliver_scores(self, batch: list[Pending[_Choice, ChoiceResult]], got: Answer, sent_at_s: float) -> None:
        if not isinstance(got, protocol.Scores):
            raise WrongShapeError("scores", type(got).__name__)
        if not len(got.scores) == len(got.clipped) == len(got.tokens_in) == len(batch):
            raise WrongShapeError(f"{len(batch)} calls", f"{len(got.scores)} calls")
        for i, call in enumerate(batch):
            scores = tuple(map(float, got.scores[i]))
            if len(scores) != len(call.question.options) or not all(map(math.isfinite, scores)):
                call.fail(WrongShapeError(f"{len(call.question.options)} finite scores", str(scores)[:200]))
                continue
            queue_s = max(sent_at_s - call.queued_at_s, 0.0)
            usage = Usage(got.tokens_in[i], 0, queue_s, got.compute_s, len(batch))
            call.resolve(ChoiceResult(scores, usage, got.clipped[i]))

    def _deliver_text(self, batch: list[Pending[_Prompt, Generation]], got: Answer, _: float) -> None:
        if not isinstance(got, protocol.Text):
            raise WrongShapeError("a text", type(got).__name__)
        call = batch[0]
        queue_s = max(time.monotonic() - call.queued_at_s - got.compute_s, 0.0)
        usage = Usage(got.tokens_in, got.tokens_out, queue_s, got.compute_s, got.batch)
        call.resolve(Generation(got.text, got.finished, usage))


def _check_prompt(prompt: str, max_tokens: int) -> None:
    if not prompt.strip():
        raise ModelRequestRefusedError("the prompt is empty")
    if max_tokens < 1:
        raise ModelRequestRefusedError(f"max_tokens is {max_tokens}, it must be at least 1")
    check_text(prompt)


def _choice_frame(request_id: int, batch: list[Pending[_Choice, ChoiceResult]]) -> protocol.ChooseBatch:
    return protocol.ChooseBatch(
        request_id,
        int(batch[0].priority),
        [call.question.text for call in batch],
        [call.question.options for call in batch],
    )


def _generate_frame(request_id: int, batch: list[Pending[_Prompt, Generation]]) -> protocol.Generate:
    asked = batch[0].question
    return protocol.Generate(
        request_id,
        int(batch[0].priority),
        asked.prompt,
        asked.grammar,
        asked.max_tokens,
        streamed=asked.pieces is not None,
        ending=asked.ending,
        alone=batch[0].alone,
    )


def _put_piece(question: _Prompt, text: str) -> None:
    if question.pieces is not None:
        question.pieces.put_nowait(text)
