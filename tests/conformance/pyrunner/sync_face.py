"""Commands through `Client`, each in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from clag.v1 import memory_service_pb2 as pb
from clag_client import Client, NewMemory
from clag_client.aio import DEFAULT_TIMEOUT_S

from tests.conformance.pyrunner.wire import (
    Json,
    decoded,
    encoded,
    items_of,
    method_of,
    options_of,
    query_of,
    tls_of,
)
from tests.conformance.pyrunner.work import Work

__all__ = ["SyncFace"]

_THREADS = 256


class SyncFace:
    """The clients of one runner, by name."""

    language = "python-sync"

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}
        self._threads = ThreadPoolExecutor(_THREADS)

    async def run(self, work: Work) -> Json:
        """Do a command and return what its `ok` holds."""
        operation = getattr(self, f"op_{work.command['op']}")
        done: Json = await asyncio.get_running_loop().run_in_executor(self._threads, operation, work)
        return done

    def op_connect(self, work: Work) -> Json:
        command = work.command
        client = Client(
            command["target"],
            token=command.get("token", ""),
            tls=tls_of(command),
            timeout_s=work.timeout_s or DEFAULT_TIMEOUT_S,
        )
        self._clients[command.get("name", "a")] = client
        return {}

    def op_close(self, work: Work) -> Json:
        self._clients.pop(work.command.get("name", "a")).close()
        return {}

    def op_call(self, work: Work) -> Json:
        client, command = self._client(work), work.command
        method = method_of(command["method"])
        stub = getattr(getattr(client, method.stub), method.name)
        if not method.many_responses:
            request = decoded(command["request"], method.request)
            future = client.call_future(stub, request, timeout_s=work.timeout_s)
            work.on_cancel(future.cancel)
            return {"response": encoded(future.result())}
        closing = threading.Event()
        asked: Any
        if method.many_requests:
            messages = [decoded(one, method.request) for one in command["requests"]]
            asked = _requests(messages, closing if command.get("half_close") is False else None)
        else:
            asked = decoded(command["request"], method.request)
        try:
            with client.call_stream(stub, asked, timeout_s=work.timeout_s) as answers:
                work.on_cancel(answers.cancel)
                for answer in answers:
                    work.event({"response": encoded(answer)})
        finally:
            closing.set()
        return {}

    def op_text(self, work: Work) -> Json:
        made = self._client(work).create_memory("surrogates", NewMemory(work.command["value"]))
        return {"value": made.memory.text}

    def op_ingest(self, work: Work) -> Json:
        command = work.command
        resumed = threading.Event()
        work.on_resume(resumed.set)

        def source() -> Iterator[Any]:
            for number, item in enumerate(items_of(command), start=1):
                if work.pauses_before(number):
                    resumed.wait()
                work.taken += 1
                yield item

        level = pb.AckLevel.Value(f"ACK_LEVEL_{command.get('ack_level', 'DURABLE')}")
        ingestion = self._client(work).ingest(
            command["namespace"],
            source(),
            stream_id=command.get("stream_id", ""),
            ack_level=level,
            timeout_s=work.timeout_s,
        )
        try:
            with ingestion as stream:
                work.on_cancel(stream.cancel)
                if work.slow:
                    resumed.wait()
                for outcome in stream:
                    work.outcome(outcome)
                return work.ingested(resumed_at=stream.resumed_at, reconnects=stream.reconnects)
        finally:
            resumed.set()  # lets the thread go that reads the source

    def op_retrieve(self, work: Work) -> Json:
        request = decoded(work.command["request"], pb.RetrieveRequest)
        with self._client(work).retrieve(
            request.namespace, query_of(request), timeout_s=work.timeout_s, **options_of(request)
        ) as stages:
            work.on_cancel(stages.cancel)
            for stage in stages:
                work.event({"stage": stage.WhichOneof("stage"), "response": encoded(stage)})
        return {}

    def op_context(self, work: Work) -> Json:
        request = decoded(work.command["request"], pb.GetContextRequest).retrieve
        context = self._client(work).get_context(
            request.namespace, query_of(request), timeout_s=work.timeout_s, **options_of(request)
        )
        return {"response": encoded(context)}

    def op_answer(self, work: Work) -> Json:
        request = decoded(work.command["request"], pb.AnswerRequest)
        with self._client(work).answer(
            request.retrieve.namespace,
            request.retrieve.query.text,
            max_tokens=request.max_tokens,
            instructions=request.instructions,
            answer_without_evidence=request.answer_without_evidence,
            timeout_s=work.timeout_s,
            **options_of(request.retrieve),
        ) as frames:
            work.on_cancel(frames.cancel)
            for frame in frames:
                work.event({"response": encoded(frame)})
        return {}

    def op_watch(self, work: Work) -> Json:
        request = decoded(work.command["request"], pb.WatchRequest)
        left = int(work.command.get("limit", -1))
        with self._client(work).watch(
            request.namespace,
            start_after=request.start_after if request.HasField("start_after") else None,
            kinds=request.kinds,
            include_values=request.include_values,
        ) as responses:
            work.on_cancel(responses.cancel)
            for response in responses:
                work.event({"response": encoded(response)})
                left -= 1
                if left == 0:
                    break
        return {}

    def _client(self, work: Work) -> Client:
        return self._clients[work.command.get("name", "a")]


def _requests(messages: list[Any], closing: threading.Event | None) -> Iterator[Any]:
    yield from messages
    if closing is not None:
        closing.wait()
