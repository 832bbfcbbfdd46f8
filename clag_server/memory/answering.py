"""Answering a question: retrieve, look whether what was found bears on it, let the SLM answer from the context.

The frames of the retrieval come as they are made; the context only where the SLM is given it. Nothing relevant is
an end of its own, not a sentence that a model made up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final, Protocol

from clag_server.memory.answer_prompt import AnswerText, answer_prompt
from clag_server.memory.closing import closed_after
from clag_server.memory.config import RetrieveConfig
from clag_server.memory.lexical import tokens
from clag_server.memory.registry import Models, NamespaceRegistry
from clag_server.memory.relevance import evidence_of, relevance
from clag_server.memory.time_left import spare_s
from clag_server.models.api import (
    ModelRequestRefusedError,
    ModelTimeoutError,
    ModelUnavailableError,
    Priority,
    SlmEngine,
    TokenCounter,
)
from clag_server.types.answer import AnswerDone, AnswerEnd, AnswerPiece, AnswerQuery, AnswerStage
from clag_server.types.errors import FieldViolation, InvalidField
from clag_server.types.retrieval import (
    AssembledContext,
    ClusterSelection,
    DegradationKind,
    MemoryHit,
    MemoryHits,
    RetrieveDone,
    RetrieveQuery,
    RetrieveStage,
)

__all__ = ["Answering"]

_SHARE_OF_RETRIEVAL: Final = 0.5
"""Of a deadline: a retrieval that took more would leave the model no time to write."""


class Retrieving(Protocol):
    """Who finds memories."""

    def retrieve(self, query: RetrieveQuery) -> AsyncIterator[RetrieveStage]:
        """Answer a query in stages; see `memory.service.MemoryService`."""


class Answering:
    """Answers questions of all namespaces.

    Args:
        memories: Finds memories.
        registry: The namespaces at work.
        models: The SLM that answers, and its tokenizer.
        config: The threshold of relevance.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        memories: Retrieving,
        registry: NamespaceRegistry,
        models: Models,
        config: RetrieveConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memories = memories
        self._registry = registry
        self._models = models
        self._config = config
        self._clock = clock

    async def answer(self, asked: AnswerQuery) -> AsyncGenerator[AnswerStage, None]:
        """Yield the stages of the retrieval, the pieces of the answer, and its end.

        Closing the iterator ends the generation.

        Raises:
            ModelUnavailableError: There is no SLM, or it does not answer now.
            InvalidField: The prompt is too long for the SLM, or the budget too small for any memory.
        """
        slm = self._models.slm
        if slm is None:
            raise ModelUnavailableError("no language model is configured")
        query = asked.retrieve
        until_s = None if query.deadline_s is None else self._clock() + query.deadline_s - spare_s(query.deadline_s)
        if query.deadline_s is not None:
            query = replace(query, deadline_s=query.deadline_s * _SHARE_OF_RETRIEVAL)
        hits: Sequence[MemoryHit] = ()
        context = AssembledContext("", 0, (), 0, truncated=False)
        end: RetrieveDone | None = None
        async with closed_after(self._memories.retrieve(query)) as stages:
            async for stage in stages:
                match stage:
                    case ClusterSelection():
                        yield stage
                    case MemoryHits():
                        hits = stage.hits
                        yield stage
                    case AssembledContext():
                        context = stage
                    case RetrieveDone():
                        end = stage
        if end is None:
            raise AssertionError("the retrieval ended without an end")
        if not asked.without_evidence:
            short = any(one.kind is DegradationKind.CONTEXT_SKIPPED for one in end.degraded)
            if short or not await self._relevant(query, hits, end):
                yield AnswerDone(AnswerEnd.DEADLINE if short else AnswerEnd.NO_EVIDENCE, (), 0, 0, 0.0, end)
                return
            if not context.memory_ids:
                small = "is too small for any of the memories that were found"
                raise InvalidField(FieldViolation("retrieve.context_tokens", small))
        yield context
        writing = _Writing(slm, self._models.token_counter, asked, context, until_s=until_s, clock=self._clock)
        async with aclosing(writing.pieces()) as pieces:
            async for piece in pieces:
                yield piece
        yield await writing.done(end)

    async def _relevant(self, query: RetrieveQuery, hits: Sequence[MemoryHit], end: RetrieveDone) -> bool:
        if not hits:
            return False
        state = (await self._registry.pipeline(query.namespace, create=False, again=True)).state
        frequency, documents = await state.catalog.document_frequency(state.ns, sorted(set(tokens(query.text))))
        dense = all(one.kind is not DegradationKind.DENSE_UNAVAILABLE for one in end.degraded)
        evidence = evidence_of(query.text, hits, frequency, documents, dense=dense)
        return relevance(evidence) >= self._config.answer_relevance


class _Writing:
    """The SLM at one answer. Use once: `pieces`, then `done`."""

    def __init__(
        self,
        slm: SlmEngine,
        counter: TokenCounter,
        asked: AnswerQuery,
        context: AssembledContext,
        *,
        until_s: float | None,
        clock: Callable[[], float],
    ) -> None:
        self._slm = slm
        self._counter = counter
        self._asked = asked
        self._context = context
        self._until_s = until_s
        self._clock = clock
        self._prompt = answer_prompt(
            asked.retrieve.text, context.text if context.memory_ids else "", instructions=asked.instructions
        )
        self._written: list[str] = []
        self._took_s = 0.0
        self._late = False
        self._ended = False

    async def pieces(self) -> AsyncGenerator[AnswerPiece, None]:
        """Yield the answer as it is written."""
        started = self._clock()
        left_s = None if self._until_s is None else self._until_s - started
        if left_s is not None and left_s <= 0:
            self._late = True
            return
        text = AnswerText()
        try:
            async with aclosing(
                self._slm.stream(
                    self._prompt,
                    max_tokens=self._asked.max_tokens,
                    priority=Priority.INTERACTIVE,
                    deadline_s=left_s,
                )
            ) as written:
                async for piece in written:
                    self._written.append(piece)
                    if shown := text.feed(piece):
                        yield AnswerPiece(shown)
                    if text.ended:
                        break
        except ModelTimeoutError:
            self._late = True
        except ModelRequestRefusedError as refused:
            raise InvalidField(FieldViolation(self._too_long(), f"is too much: {refused.reason}")) from None
        finally:
            self._took_s = self._clock() - started
        self._ended = text.ended
        if rest := text.rest():
            yield AnswerPiece(rest)

    def _too_long(self) -> str:
        """Return the field that makes a prompt and its answer too long for the SLM: what asks for more of it."""
        return "max_tokens" if self._asked.max_tokens > self._context.tokens else "retrieve.context_tokens"

    async def done(self, retrieval: RetrieveDone) -> AnswerDone:
        """Return how it ended; tokens are counted as the SLM counts them."""
        texts = (self._prompt, "".join(self._written))
        prompt_tokens, answer_tokens = await asyncio.to_thread(self._counter.count, texts)
        return AnswerDone(
            end=self._end(answer_tokens),
            memory_ids=self._context.memory_ids,
            prompt_tokens=prompt_tokens,
            answer_tokens=min(answer_tokens, self._asked.max_tokens),
            generate_s=self._took_s,
            retrieval=retrieval,
        )

    def _end(self, answer_tokens: int) -> AnswerEnd:
        if self._late:
            return AnswerEnd.DEADLINE
        full = not self._ended and answer_tokens >= self._asked.max_tokens
        return AnswerEnd.MAX_TOKENS if full else AnswerEnd.COMPLETE
