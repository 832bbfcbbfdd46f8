"""MemoryService at the edge: convert, one domain call, convert back; other groups of calls have their own files."""

# ruff: noqa: N802 - methods have the names of the contract

from __future__ import annotations

from contextlib import aclosing

from clag.v1 import memory_service_pb2 as pb

from clag_server.api.answer import AnswerCalls
from clag_server.api.convert_filter import filter_from
from clag_server.api.convert_ingest import level_from
from clag_server.api.convert_memory import memory_to, new_memory_from
from clag_server.api.convert_retrieve import query_from
from clag_server.api.convert_values import fresh_revision, revision
from clag_server.api.editing import EditCalls
from clag_server.api.errors import TooLarge
from clag_server.api.facts import ServerFacts
from clag_server.api.ingest import FrameSource, IngestCall
from clag_server.api.interceptors.drain import DrainGate
from clag_server.api.interceptors.guard import Context
from clag_server.api.limits import DEFAULT_CONTEXT_TOKENS, MAX_MESSAGE_BYTES, MAX_PAGE_BYTES, page_size
from clag_server.api.paging import page_token, resume_after_number, scope_of
from clag_server.api.retrieve_stream import RetrieveStreamCalls
from clag_server.api.retrieved import retrieved, time_left_s
from clag_server.api.scenes import SceneCalls
from clag_server.api.unserved import serves
from clag_server.api.watch import HistoryCalls, WatchCalls
from clag_server.memory.answering import Answering
from clag_server.memory.feeds import Feeds
from clag_server.memory.service import MemoryService

__all__ = ["MemoryServicer"]

SERVICE = "MemoryService"


@serves(SERVICE)
class MemoryServicer(EditCalls, SceneCalls, WatchCalls, HistoryCalls, RetrieveStreamCalls, AnswerCalls):
    """Stores and retrieves memories.

    Args:
        service: The domain.
        facts: Limits and the dimension of embeddings.
        gate: Tells open streams when the server drains.
        feeds: Changes as they happen, and histories.
        answering: Answers of the SLM.
    """

    def __init__(
        self, service: MemoryService, facts: ServerFacts, gate: DrainGate, feeds: Feeds, answering: Answering
    ) -> None:
        self._service = service
        self._facts = facts
        self._gate = gate
        self._feeds = feeds
        self._answering = answering

    async def Ingest(self, frames: FrameSource, context: Context) -> None:
        """Store a stream of batches with acknowledgements, resume and flow control."""
        await IngestCall(frames, context, self._service, self._facts, self._gate).run()

    async def Retrieve(self, request: pb.RetrieveRequest, context: Context) -> None:
        """Answer in stages."""
        query = query_from(request, dim=self._facts.embedding_dim(), deadline_s=time_left_s(context, self._facts))
        async with aclosing(retrieved(self._service, query)) as frames:
            async for frame in frames:
                await context.write(frame)

    async def GetContext(self, request: pb.GetContextRequest, context: Context) -> pb.GetContextResponse:
        """Answer with all stages at once."""
        query = query_from(
            request.retrieve,
            dim=self._facts.embedding_dim(),
            default_context_tokens=DEFAULT_CONTEXT_TOKENS,
            deadline_s=time_left_s(context, self._facts, unary=True),
            prefix="retrieve.",
        )
        answer = pb.GetContextResponse()
        async with aclosing(retrieved(self._service, query)) as frames:
            async for frame in frames:
                stage = frame.WhichOneof("stage")
                if stage is not None:
                    getattr(answer, stage).MergeFrom(getattr(frame, stage))
        if (size := answer.ByteSize()) > MAX_MESSAGE_BYTES:
            raise TooLarge(
                "the answer", size=size, limit=MAX_MESSAGE_BYTES, advice="ask for fewer memories, or use Retrieve"
            )
        return answer

    async def CreateMemory(self, request: pb.CreateMemoryRequest, _context: Context) -> pb.CreateMemoryResponse:
        """Store one memory."""
        memory = new_memory_from(request.memory, dim=self._facts.embedding_dim(), prefix="memory.")
        created = await self._service.create_memory(
            request.namespace, memory, request_id=request.request_id, level=level_from(request.ack_level)
        )
        return pb.CreateMemoryResponse(
            memory=memory_to(request.namespace, created.memory),
            duplicate=created.duplicate,
            revision=revision(request.namespace, created.revision),
        )

    async def GetMemory(self, request: pb.GetMemoryRequest, _context: Context) -> pb.GetMemoryResponse:
        """Read one memory."""
        memory, read_at = await self._service.get_memory(
            request.namespace,
            request.memory_id,
            embedding=request.include_embedding,
            fresh_revision=fresh_revision(request.namespace, request.read),
        )
        return pb.GetMemoryResponse(
            memory=memory_to(request.namespace, memory), read_at=revision(request.namespace, read_at)
        )

    async def ListMemories(self, request: pb.ListMemoriesRequest, _context: Context) -> pb.ListMemoriesResponse:
        """Page through memories."""
        has_filter = request.HasField("filter")
        scope = scope_of(
            "ListMemories", request.namespace, request.filter.SerializeToString(deterministic=True), has_filter
        )
        page, read_at = await self._service.list_memories(
            request.namespace,
            where=filter_from(request.filter) if has_filter else None,
            after=resume_after_number(scope, request.page_token, start=0),
            limit=page_size(request.page_size),
            fresh_revision=fresh_revision(request.namespace, request.read),
            embeddings=request.include_embeddings,
        )
        response = pb.ListMemoriesResponse(read_at=revision(request.namespace, read_at))
        after, size = page.next_after, 0
        for index, memory in enumerate(page.memories):
            message = memory_to(request.namespace, memory)
            size += message.ByteSize()
            if index and size > MAX_PAGE_BYTES:
                after = page.memories[index - 1].key
                break
            response.memories.append(message)
        response.next_page_token = page_token(scope, after)
        return response
