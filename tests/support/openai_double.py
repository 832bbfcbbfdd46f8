"""A scripted OpenAI-compatible server on a real loopback socket, with every deviation that real ones have.

It speaks HTTP/1.1 with kept connections. What it can do is set by `Abilities`; what goes wrong is a queue of
faults, one for each of the next requests; what it says is a function of the request. Its log-probabilities are
those of a tiny model that expects words it has read before, and numbers in their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from clag_server.models.remote_chat import GrammarField
from clag_server.models.remote_scores import ScoreMethod

Fault = Callable[["Connection"], Awaitable[None]]

_NUMBERS = "one two three four five six seven eight nine ten eleven twelve".split()


@dataclass
class Abilities:
    """What the server honours; what it does not honour it ignores, unless `strict`."""

    json_schema: bool = False
    json_object: bool = False
    grammar_field: GrammarField | None = None
    scores: ScoreMethod | None = None
    scores_length_off: int = 0
    scores_flat: bool = False
    strict: bool = False
    """Unknown fields are refused with status 422."""
    models: tuple[str, ...] = ("tiny",)
    any_model: bool = False
    key: str = ""


@dataclass(frozen=True)
class Request:
    path: str
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def prompt(self) -> str:
        return str(self.body["messages"][0]["content"])


class Connection:
    """One request's line back."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} X", "content-type: application/json", f"content-length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + data)


def status(code: int, message: str = "no", **headers: str) -> Fault:
    async def fault(line: Connection) -> None:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        await line.send(code, {"error": {"message": message}}, sent)

    return fault


def body(data: bytes) -> Fault:
    async def fault(line: Connection) -> None:
        await line.send(200, data)

    return fault


async def hang(line: Connection) -> None:
    await asyncio.Event().wait()


async def slow_headers(line: Connection) -> None:
    await line.raw(b"HTTP/1.1 200 OK\r\ncontent-ty")
    await asyncio.Event().wait()


async def close(line: Connection) -> None:
    line.writer.close()


async def close_in_body(line: Connection) -> None:
    await line.raw(b'HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{"choices": [')
    line.writer.close()


def cut_stream(*pieces: str) -> Fault:
    async def fault(line: Connection) -> None:
        await line.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        for piece in pieces:
            await line.raw(_event({"choices": [{"delta": {"content": piece}, "finish_reason": None}]}))
        line.writer.close()

    return fault


@dataclass
class OpenAiDouble:
    abilities: Abilities = field(default_factory=Abilities)
    answer: Callable[[Request], str] = lambda _: "The sea is wide."
    finish_reason: str = "stop"
    faults: deque[Fault] = field(default_factory=deque)
    """For the next requests to any path but `/v1/models`."""
    requests: list[Request] = field(default_factory=list)
    gate: asyncio.Event | None = None
    """When set, requests are answered only while the event is."""
    streams: bool = True
    scorer: Callable[[str], tuple[list[str], list[float]]] | None = None
    """Gives the tokens and log-probabilities of a prompt; by default `log_probability`."""
    in_flight: int = 0
    most_in_flight: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[OpenAiDouble]:
        tasks: set[asyncio.Task[None]] = set()

        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                await self._serve(reader, writer)
            except (asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
                pass  # the test is over, or the client left
            finally:
                writer.close()
                tasks.discard(task)

        server = await asyncio.start_server(client, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            ending = list(tasks)
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines) if name
            }
            raw = await reader.readexactly(int(headers.get("content-length", "0")))
            request = Request(first.split()[1], json.loads(raw) if raw else {}, headers)
            self.requests.append(request)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            try:
                if self.gate is not None:
                    await self.gate.wait()
                await self._answer(request, Connection(writer))
            finally:
                self.in_flight -= 1

    async def _answer(self, request: Request, line: Connection) -> None:
        able = self.abilities
        if able.key and request.headers.get("authorization") != f"Bearer {able.key}":
            told = request.headers.get("authorization", "none")
            await line.send(401, {"error": {"message": f"wrong key: {told}"}})
        elif request.path == "/v1/models":
            await line.send(200, {"data": [{"id": name} for name in able.models]})
        elif self.faults:
            await self.faults.popleft()(line)
        elif request.path == "/generate":
            await self._sglang(request, line)
        elif request.body.get("model") not in able.models and not able.any_model:
            await line.send(404, {"error": {"message": "The model does not exist."}})
        elif request.path == "/v1/chat/completions":
            await self._chat(request, line)
        elif request.path == "/v1/completions":
            await self._completions(request, line)
        else:
            await line.send(404, {"detail": "Not Found"})

    async def _chat(self, request: Request, line: Connection) -> None:
        unknown = set(request.body) - {"model", "messages", "max_tokens", "temperature", "stream", *self._known()}
        if self.abilities.strict and unknown:
            await line.send(422, {"detail": f"Unexpected fields: {sorted(unknown)}"})
            return
        asked_by_probe = "about the sea" in request.prompt
        text = self._constrained(request) or ("The sea is wide." if asked_by_probe else self.answer(request))
        if request.body.get("stream") and self.streams:
            await line.raw(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            for piece in re.findall(r"\s*\S+|\s+$", text):
                await line.raw(_chunk(_event({"choices": [{"delta": {"content": piece}, "finish_reason": None}]})))
            ended = {"choices": [{"delta": {}, "finish_reason": self.finish_reason}]}
            await line.raw(_chunk(_event(ended)) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            return
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": self.finish_reason}
        usage = {"prompt_tokens": len(request.prompt.split()), "completion_tokens": len(text.split())}
        await line.send(200, {"choices": [choice], "usage": usage})

    def _known(self) -> set[str]:
        known = {self.abilities.grammar_field.value} if self.abilities.grammar_field else set()
        return known | ({"response_format"} if self.abilities.json_schema or self.abilities.json_object else set())

    def _constrained(self, request: Request) -> str | None:
        """What constrained decoding makes of a probe; real constraints are for the answers of a test to obey."""
        wanted = request.body.get("response_format", {})
        able = self.abilities
        if wanted.get("type") == "json_schema" and able.json_schema:
            fields = wanted["json_schema"]["schema"].get("properties", {})
            if set(fields) == {"answer"} and "enum" in fields["answer"]:
                return json.dumps({"answer": fields["answer"]["enum"][0]})
        if wanted.get("type") == "json_object" and able.json_object and "about the sea" in request.prompt:
            return '{"sentence": "The sea is wide."}'
        if (
            able.grammar_field is not None
            and able.grammar_field.value in request.body
            and "about the sea" in request.prompt
        ):
            return "tin roof 7"
        return None

    async def _completions(self, request: Request, line: Connection) -> None:
        choices: list[dict[str, object]] = []
        total = 0
        for index, prompt in enumerate(request.body["prompt"]):
            tokens, logprobs = self._scored(prompt)
            total += len(tokens) - self.abilities.scores_length_off
            choice: dict[str, object] = {"index": index, "text": " x", "finish_reason": "length"}
            if self.abilities.scores is ScoreMethod.PROMPT_LOGPROBS and "prompt_logprobs" in request.body:
                entries = [{_token_id(t): {"logprob": p}} for t, p in zip(tokens, logprobs, strict=True)]
                choice["prompt_logprobs"] = [None, *entries[1:]]
            elif self.abilities.scores is ScoreMethod.ECHO and request.body.get("echo"):
                choice["logprobs"] = {"tokens": [*tokens, " x"], "token_logprobs": [None, *logprobs[1:], -1.0]}
            choices.append(choice)
        # Servers are free in the order of the choices; the index tells.
        usage = {"prompt_tokens": total, "completion_tokens": len(choices)}
        await line.send(200, {"choices": choices[::-1], "usage": usage})

    async def _sglang(self, request: Request, line: Connection) -> None:
        if self.abilities.scores is not ScoreMethod.SGLANG:
            await line.send(404, {"detail": "Not Found"})
            return
        items = []
        for prompt in request.body["text"]:
            tokens, logprobs = self._scored(prompt)
            entries = [
                [p if i else None, _token_id(t), None]
                for i, (t, p) in enumerate(zip(tokens, logprobs, strict=True))
            ]
            items.append(
                {
                    "text": " x",
                    "meta_info": {"prompt_tokens": len(_tokens(prompt)), "input_token_logprobs": entries},
                }
            )
        await line.send(200, items)

    def _scored(self, prompt: str) -> tuple[list[str], list[float]]:
        if self.scorer is not None:
            return self.scorer(prompt)
        tokens = _tokens(prompt)
        logprobs = [-1.0 if self.abilities.scores_flat else log_probability(tokens, i) for i in range(len(tokens))]
        kept = len(tokens) + self.abilities.scores_length_off
        return tokens[:kept], logprobs[:kept]


def log_probability(tokens: list[str], index: int) -> float:
    """Log P of a token by the double's own little model, in nats."""
    words = [re.sub(r"\W", "", token).lower() for token in tokens[: index + 1]]
    last, before = words[-1], words[:-1]
    if last in _NUMBERS and before and before[-1] in _NUMBERS:
        return -0.5 if _NUMBERS.index(last) == _NUMBERS.index(before[-1]) + 1 else -4.0
    return -2.0 if last in before else -6.0


def _tokens(text: str) -> list[str]:
    return re.findall(r"\s*\S+", text)


def _token_id(token: str) -> str:
    return str(int.from_bytes(token.encode()[:6], "big"))


def _event(data: object) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"
