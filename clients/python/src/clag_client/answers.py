"""Answers of the server's language model, and many questions over one call; part of both clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Unpack

import grpc
from clag.v1 import memory_service_pb2 as pb

from clag_client.calls import UnaryCalls
from clag_client.closing import closing_told
from clag_client.errors import from_rpc
from clag_client.retrieval_stream import PendingQuery, RetrievalStream
from clag_client.values import RetrieveOptions, retrieve_request

if TYPE_CHECKING:
    from clag.v1.memory_service_pb2_grpc import MemoryServiceAsyncStub  # exists for type checkers only

    from clag_client.aio import AsyncClient
    from clag_client.loop import Iteration, Loop

__all__ = ["AsyncAnswerCalls", "SyncAnswerCalls", "SyncPendingQuery", "SyncRetrievalStream"]


class AsyncAnswerCalls(UnaryCalls):
    """Methods of `AsyncClient`."""

    memory: MemoryServiceAsyncStub

    @asynccontextmanager
    async def answer(
        self,
        namespace: str,
        question: str,
        *,
        max_tokens: int = 0,
        instructions: str = "",
        answer_without_evidence: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[RetrieveOptions],
    ) -> AsyncIterator[AsyncIterator[pb.AnswerResponse]]:
        """Let the server's language model answer from what it finds. Leaving the context early ends the generation.

        Args:
            namespace: where to look.
            question: what to answer.
            max_tokens: length of the answer, at most; 0 is the server's default.
            instructions: how to answer, e.g. "in one word".
            answer_without_evidence: whether it answers even when nothing relevant was found.
            timeout_s: the deadline, in seconds; an answer that is cut by it says so at its end.
            options: of the retrieval.

        Yields:
            An iterator of frames: clusters, memories, the context, pieces of the answer, done. Where nothing
            relevant is found there is no piece, and `done.end` is ANSWER_END_NO_EVIDENCE.
        """
        request = pb.AnswerRequest(
            retrieve=retrieve_request(namespace, question, options),
            max_tokens=max_tokens,
            instructions=instructions,
            answer_without_evidence=answer_without_evidence,
        )
        call = self.memory.Answer(request, timeout=timeout_s or self._timeout_s, metadata=self.metadata)
        try:
            yield _frames(call)
        finally:
            call.cancel()

    def retrieve_stream(self, *, timeout_s: float | None = None) -> RetrievalStream:
        """Ask many questions over one call; see `RetrievalStream`.

        Args:
            timeout_s: deadline of the whole stream, in seconds; None for none.
        """
        return RetrievalStream(self.memory, metadata=self.metadata, timeout_s=timeout_s)


class SyncPendingQuery:
    """A question that was asked; see `PendingQuery`."""

    def __init__(self, loop: Loop, pending: PendingQuery) -> None:
        self._loop = loop
        self._pending = pending

    def __iter__(self) -> Iterator[pb.RetrieveResponse]:
        return self._loop.iterate(self._pending)

    def result(self) -> pb.GetContextResponse:
        """Wait for all stages and return them in one."""
        return self._loop.run(self._pending.result())

    def cancel(self) -> None:
        """Ask the server to forget it."""
        self._loop.run(self._pending.cancel())


class SyncRetrievalStream:
    """A RetrieveStream call; see `RetrievalStream`."""

    def __init__(self, loop: Loop, stream: RetrievalStream) -> None:
        self._loop = loop
        self._stream = stream

    def ask(
        self, namespace: str, query: str | Sequence[float], **options: Unpack[RetrieveOptions]
    ) -> SyncPendingQuery:
        """Send a question; its answer is read later, in any order."""
        return SyncPendingQuery(self._loop, self._loop.run(self._stream.ask(namespace, query, **options)))

    def done_asking(self) -> None:
        """Tell the server that no question follows."""
        self._loop.run(self._stream.done_asking())


class SyncAnswerCalls:
    """Methods of `Client`, as those of `AsyncAnswerCalls`."""

    _client: AsyncClient
    _loop: Loop

    @contextmanager
    def answer(
        self,
        namespace: str,
        question: str,
        *,
        max_tokens: int = 0,
        instructions: str = "",
        answer_without_evidence: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[RetrieveOptions],
    ) -> Iterator[Iteration[pb.AnswerResponse]]:
        """Let the server's language model answer from what it finds. Leaving the context ends the generation."""
        manager = self._client.answer(
            namespace,
            question,
            max_tokens=max_tokens,
            instructions=instructions,
            answer_without_evidence=answer_without_evidence,
            timeout_s=timeout_s,
            **options,
        )
        with self._loop.entered(manager) as frames:
            yield self._loop.iterate(frames)

    @contextmanager
    def retrieve_stream(self, *, timeout_s: float | None = None) -> Iterator[SyncRetrievalStream]:
        """Ask many questions over one call. Leaving the context cancels what is in flight."""

        async def opened() -> RetrievalStream:  # calls belong to the loop that runs when they are made
            return self._client.retrieve_stream(timeout_s=timeout_s)

        with self._loop.entered(self._loop.run(opened())) as stream:
            yield SyncRetrievalStream(self._loop, stream)


async def _frames(
    call: grpc.aio.UnaryStreamCall[pb.AnswerRequest, pb.AnswerResponse],
) -> AsyncIterator[pb.AnswerResponse]:
    try:
        with closing_told():
            async for frame in call:
                yield frame
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error) from None
