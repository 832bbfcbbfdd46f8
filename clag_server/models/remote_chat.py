"""The chat interface: requests for texts and objects, and how their answers are read.

Which way of asking for an object a server honours is found by `remote_probe`: some accept a `response_format` and
ignore it (measured: `transformers serve` 5.24 takes `json_object` without an error and writes prose).
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clag_server.models.remote_failure import FailureKind, RemoteFailure
from clag_server.models.remote_text import as_plain_text, contained_object, tidied, without_reasoning
from clag_server.models.schema import Schema, grammar_of, json_schema_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CHAT_PATH",
    "Form",
    "GrammarField",
    "Reply",
    "chat_body",
    "read_delta",
    "read_reply",
    "shape",
    "shaped_text",
]

CHAT_PATH: Final = "/chat/completions"


class Form(enum.Enum):
    """How a server is made to write an object, from the strictest to none."""

    JSON_SCHEMA = "json_schema"
    GRAMMAR = "grammar"
    JSON_OBJECT = "json_object"
    TEXT = "text"
    """By asking in words; the object is cut out of the answer."""


class GrammarField(enum.Enum):
    """Under which name a server takes an EBNF grammar."""

    STRUCTURED_OUTPUTS = "structured_outputs"
    """vLLM from 0.11."""
    GUIDED_GRAMMAR = "guided_grammar"
    """vLLM before."""
    EBNF = "ebnf"
    """SGLang."""
    GRAMMAR = "grammar"
    """llama.cpp."""

    def fields(self, grammar: str) -> dict[str, object]:
        """Return the request's fields."""
        if self is GrammarField.STRUCTURED_OUTPUTS:
            return {self.value: {"grammar": grammar}}
        return {self.value: grammar}


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the chat interface."""

    text: str
    finished: bool
    """True when the model ended the text by itself."""
    tokens_in: int
    """Without those that the server had in its prefix cache, where it tells."""
    tokens_out: int


def chat_body(
    model: str, prompt: str, *, max_tokens: int, no_thinking: bool, fields: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return a request for the continuation of one user's turn, greedily.

    Args:
        model: Name on the server.
        prompt: The user's turn; control tokens in it are broken into plain text.
        max_tokens: Bound of the answer.
        no_thinking: Switch off the reasoning of chat templates that have a switch (Qwen3).
        fields: Of the form.
    """
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": as_plain_text(prompt)}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    if no_thinking:
        body["chat_template_kwargs"] = {"enable_thinking": False}
    return body | dict(fields or {})


def shape(
    form: Form, prompt: str, schema: Schema | None, grammar: str | None, grammar_field: GrammarField | None
) -> tuple[str, dict[str, object]]:
    """Return the prompt and the request's fields that ask for an object in a given form."""
    described = prompt
    if schema is not None and form in (Form.JSON_OBJECT, Form.TEXT):
        wanted = json.dumps(json_schema_of(schema), ensure_ascii=False)
        described = f"{prompt}\n\nAnswer with one JSON value only, which follows this JSON schema:\n{wanted}"
    match form:
        case Form.JSON_SCHEMA if schema is not None:
            named = {"name": "answer", "strict": True, "schema": json_schema_of(schema)}
            return described, {"response_format": {"type": "json_schema", "json_schema": named}}
        case Form.GRAMMAR if grammar_field is not None:
            return described, grammar_field.fields(grammar or (grammar_of(schema) if schema is not None else ""))
        case Form.JSON_OBJECT:
            return described, {"response_format": {"type": "json_object"}}
        case _:
            return described, {}


def shaped_text(reply: Reply) -> Reply:
    """Return the reply with the object that it contains as its text; as it is when there is none.

    A whole object is a finished answer, also when the model would have gone on talking.
    """
    found = contained_object(reply.text)
    if found is None:
        return reply
    text = json.dumps(tidied(json.loads(found)), ensure_ascii=False)
    return Reply(text, finished=True, tokens_in=reply.tokens_in, tokens_out=reply.tokens_out)


def read_reply(answer: Mapping[str, object]) -> Reply:
    """Read a whole answer.

    Raises:
        RemoteFailure: It is not a chat completion.
    """
    choice = _choice(answer)
    message = choice.get("message") if choice else None
    if choice is None or not isinstance(message, dict):
        raise RemoteFailure(FailureKind.GARBLED, "the answer has no message")
    tokens_in, tokens_out = _usage(answer)
    text = without_reasoning(_content(message.get("content")))
    return Reply(text, choice.get("finish_reason") == "stop", tokens_in, tokens_out)


def read_delta(data: str) -> tuple[str, bool]:
    """Read the data of one event of a streamed answer, or a whole answer as the only event.

    Returns:
        The piece of text, and whether the answer ended with it.

    Raises:
        RemoteFailure: It is no piece of a chat completion, or the server reports an error in it.
    """
    if data.strip() == "[DONE]":
        return "", True
    try:
        event = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RemoteFailure(FailureKind.GARBLED, "an event of the stream is not JSON") from error
    if not isinstance(event, dict) or "error" in event:
        raise RemoteFailure(FailureKind.DOWN, "the server reported an error in the middle of its answer")
    choice = _choice(event)
    if choice is None:
        return "", False  # some servers send the usage in an event of its own
    delta = choice.get("delta", choice.get("message"))
    piece = _content(delta.get("content")) if isinstance(delta, dict) else ""
    return piece, choice.get("finish_reason") is not None


def _choice(answer: Mapping[str, object]) -> Mapping[str, object] | None:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None
    return choices[0]


def _content(content: object) -> str:
    """Return a message's text: a string, nothing, or parts of which those with text count."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(
            part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    raise RemoteFailure(FailureKind.GARBLED, "the answer's content is no text")


def _usage(answer: Mapping[str, object]) -> tuple[int, int]:
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return 0, 0
    details = usage.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    return max(_count(usage.get("prompt_tokens")) - cached, 0), _count(usage.get("completion_tokens"))


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
