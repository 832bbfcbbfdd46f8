"""Answers of the server's language model, given exactly the memories that a method found.

`Answer` retrieves for itself; a filter on ids leaves it no choice, so that all methods are answered by the same
model with the same prompt. A server that does not serve `Answer` yet is said so, and the run goes on without
answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import grpc
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import ClagError
from clag_client.errors import from_rpc

from clag_eval.data import Question
from clag_eval.stored import StoredPool

__all__ = ["Answered", "ask", "not_served"]

_LISTED: Final = 64
_MOST: Final = 256
_ANSWER_TOKENS: Final = 48
_TIMEOUT_S: Final = 600.0
_HOW: Final = "Answer with a few words of the memories, not with a sentence."


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer.

    Attributes:
        text: What the model wrote.
        refused: Whether there is no answer, because nothing relevant was found.
        prompt_tokens: Tokens that the model read.
        answer_tokens: Tokens that it wrote.
        seconds: Time of writing.
    """

    text: str
    refused: bool
    prompt_tokens: int
    answer_tokens: int
    seconds: float


async def ask(stored: StoredPool, question: Question, ids: Sequence[str], *, budget: int) -> Answered:
    """Have a question answered from given memories.

    Args:
        stored: The pool.
        question: The question.
        ids: The memories; the first 256 of them.
        budget: Tokens of the context.

    Raises:
        ClagError: The server could not answer.
    """
    if not ids:
        return Answered("", refused=True, prompt_tokens=0, answer_tokens=0, seconds=0.0)
    request = pb.AnswerRequest(
        retrieve=pb.RetrieveRequest(
            namespace=stored.namespace,
            query=pb.Query(text=question.text),
            filter=_only(ids[:_MOST]),
            mode=pb.RETRIEVAL_MODE_GLOBAL,
            slm_use=pb.SLM_USE_NEVER,
            max_memories=min(_MOST, len(ids)),
            context_tokens=budget,
            include_superseded=True,
        ),
        max_tokens=_ANSWER_TOKENS,
        instructions=_HOW,
    )
    call = stored.client.memory.Answer(request, timeout=_TIMEOUT_S, metadata=stored.client.metadata)
    text: list[str] = []
    done = pb.AnswerDone()
    try:
        async for frame in call:
            match frame.WhichOneof("frame"):
                case "delta":
                    text.append(frame.delta.text)
                case "done":
                    done = frame.done
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error) from None
    finally:
        call.cancel()
    return Answered(
        "".join(text).strip(),
        refused=done.end == pb.ANSWER_END_NO_EVIDENCE,
        prompt_tokens=done.prompt_tokens,
        answer_tokens=done.answer_tokens,
        seconds=done.generate_time.ToTimedelta().total_seconds(),
    )


def not_served(error: ClagError) -> bool:
    """Return whether the server does not have `Answer` at all."""
    return error.code is grpc.StatusCode.UNIMPLEMENTED


def _only(ids: Sequence[str]) -> types_pb2.Filter:
    lists = [ids[start : start + _LISTED] for start in range(0, len(ids), _LISTED)]
    return types_pb2.Filter(any=types_pb2.FilterList(filters=[_one_of(part) for part in lists]))


def _one_of(ids: Sequence[str]) -> types_pb2.Filter:
    listed = types_pb2.AttributeValue(string_list=types_pb2.StringList(values=ids))
    return types_pb2.Filter(
        comparison=types_pb2.Comparison(
            field=types_pb2.FILTER_FIELD_MEMORY_ID, op=types_pb2.FILTER_OPERATOR_IN, value=listed
        )
    )
