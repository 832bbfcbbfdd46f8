"""Answer at the edge: the retrieval's frames, then the SLM's text piece by piece."""

# ruff: noqa: N802 - methods have the names of the contract

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from typing import cast

from clag.v1 import memory_service_pb2 as pb

from clag_server.api.convert_retrieve import done_to, frames_of, query_from
from clag_server.api.convert_values import duration
from clag_server.api.facts import ServerFacts
from clag_server.api.interceptors.guard import Context
from clag_server.api.limits import DEFAULT_ANSWER_TOKENS, DEFAULT_CONTEXT_TOKENS
from clag_server.api.retrieved import time_left_s
from clag_server.memory.answering import Answering
from clag_server.types.answer import AnswerDone, AnswerPiece, AnswerQuery, AnswerStage
from clag_server.types.errors import FieldViolation, InvalidField

__all__ = ["AnswerCalls"]


class AnswerCalls:
    """The part of MemoryService that answers questions."""

    _answering: Answering
    _facts: ServerFacts

    async def Answer(self, request: pb.AnswerRequest, context: Context) -> None:
        """Retrieve, and let the SLM answer from the context; a caller that leaves ends the generation."""
        asked = _asked(request, dim=self._facts.embedding_dim(), deadline_s=time_left_s(context, self._facts))
        async with aclosing(self._answering.answer(asked)) as stages:
            async for stage in stages:
                for frame in _frames(asked, stage):
                    await context.write(frame)


def _asked(request: pb.AnswerRequest, *, dim: int | None, deadline_s: float | None) -> AnswerQuery:
    """A question, from a message that passed the schema's rules. Raises InvalidField without one."""
    if not request.retrieve.query.text.strip():
        raise InvalidField(FieldViolation("retrieve.query.text", "must be set: it is the question"))
    return AnswerQuery(
        retrieve=query_from(
            request.retrieve,
            dim=dim,
            default_context_tokens=DEFAULT_CONTEXT_TOKENS,
            deadline_s=deadline_s,
            prefix="retrieve.",
        ),
        max_tokens=request.max_tokens or DEFAULT_ANSWER_TOKENS,
        instructions=request.instructions,
        without_evidence=request.answer_without_evidence,
    )


def _frames(asked: AnswerQuery, stage: AnswerStage) -> Iterator[pb.AnswerResponse]:
    namespace = asked.retrieve.namespace
    match stage:
        case AnswerPiece():
            yield pb.AnswerResponse(delta=pb.AnswerDelta(text=stage.text))
        case AnswerDone():
            yield pb.AnswerResponse(
                done=pb.AnswerDone(
                    end=cast("pb.AnswerEnd.ValueType", int(stage.end)),
                    memory_ids=stage.memory_ids,
                    prompt_tokens=stage.prompt_tokens,
                    answer_tokens=stage.answer_tokens,
                    generate_time=duration(stage.generate_s),
                    retrieval=done_to(namespace, stage.retrieval),
                )
            )
        case _:
            for frame in frames_of(namespace, stage, explain=asked.retrieve.explain):
                match frame.WhichOneof("stage"):
                    case "clusters":
                        yield pb.AnswerResponse(clusters=frame.clusters)
                    case "memories":
                        yield pb.AnswerResponse(memories=frame.memories)
                    case _:
                        yield pb.AnswerResponse(context=frame.context)
