"""Commands through `AsyncClient`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from clag.v1 import memory_service_pb2 as pb
from clag_client import AsyncClient, NewMemory
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

__all__ = ["AsyncFace"]


class AsyncFace:
    """The clients of one runner, by name."""

    language = "python"

    def __init__(self) -> None:
        self._clients: dict[str, AsyncClient] = {}

    async def run(self, work: Work) -> Json:
        """Do a command and return what its `ok` holds."""
        task = asyncio.current_task()
        assert task is not None
        work.on_cancel(task.cancel)
        done: Json = await getattr(self, f"op_{work.command['op']}")(work)
        return done

    async def op_connect(self, work: Work) -> Json:
        command = work.command
        client = AsyncClient(
            command["target"],
            token=command.get("token", ""),
            tls=tls_of(command),
            timeout_s=work.timeout_s or DEFAULT_TIMEOUT_S,
        )
        self._clients[command.get("name", "a")] = client
        return {}

    async def op_close(self, work: Work) -> Json:
        await self._clients.pop(work.command.get("name", "a")).close()
        return {}

    async def op_call(self, work: Work) -> Json:
        client, command = self._client(work), work.command
        method = method_of(command["method"])
        stub = getattr(getattr(client, method.stub), method.name)
        if not method.many_responses:
            request = decoded(command["request"], method.request)
            return {"response": encoded(await client.call(stub, request, timeout_s=work.timeout_s))}
        asked: Any
        if method.many_requests:
            asked = _requests(
                [decoded(one, method.request) for one in command["requests"]],
                left_open=command.get("half_close") is False,
            )
        else:
            asked = decoded(command["request"], method.request)
        async with client.call_stream(stub, asked, timeout_s=work.timeout_s) as answers:
            async for answer in answers:
                work.event({"response": encoded(answer)})
        return {}

    async def op_text(self, work: Work) -> Json:
        client = self._client(work)
        made = await client.create_memory("surrogates", NewMemory(work.command["value"]))
        return {"value": made.memory.text}

    async def op_ingest(self, work: Work) -> Json:
        command = work.command
        resumed = asyncio.Event()
        work.on_resume(resumed.set)

        async def source() -> AsyncIterator[Any]:
            for number, item in enumerate(items_of(command), start=1):
                if work.pauses_before(number):
                    await resumed.wait()
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
        async with ingestion as stream:
            if work.slow:
                await resumed.wait()
            async for outcome in stream:
                work.outcome(outcome)
            return work.ingested(resumed_at=stream.resumed_at, reconnects=stream.reconnects)

    async def op_retrieve(self, work: Work) -> Json:
        request = decoded(work.command["request"], pb.RetrieveRequest)
        async with self._client(work).retrieve(
            request.namespace, query_of(request), timeout_s=work.timeout_s, **options_of(request)
        ) as stages:
            async for stage in stages:
                work.event({"stage": stage.WhichOneof("stage"), "response": encoded(stage)})
        return {}

    async def op_context(self, work: Work) -> Json:
        request = decoded(work.command["request"], pb.GetContextRequest).retrieve
        context = await self._client(work).get_context(
            request.namespace, query_of(request), timeout_s=work.timeout_s, **options_of(request)
        )
        return {"response": encoded(context)}

    async def op_answer(self, work: Work) -> Json:
        request = decoded(work.command["request"], pb.AnswerRequest)
        async with self._client(work).answer(
            request.retrieve.namespace,
            request.retrieve.query.text,
            max_tokens=request.max_tokens,
            instructions=request.instructions,
            answer_without_evidence=request.answer_without_evidence,
            timeout_s=work.timeout_s,
            **options_of(request.retrieve),
        ) as frames:
            async for frame in frames:
                work.event({"response": encoded(frame)})
        return {}

    async def op_watch(self, work: Work) -> Json:
        request = decoded(work.command["request"], pb.WatchRequest)
        left = int(work.command.get("limit", -1))
        watch = self._client(work).watch(
            request.namespace,
            start_after=request.start_after if request.HasField("start_after") else None,
            kinds=request.kinds,
            include_values=request.include_values,
        )
        async with aclosing(watch) as responses:
            async for response in responses:
                work.event({"response": encoded(response)})
                left -= 1
                if left == 0:
                    break
        return {}

    def _client(self, work: Work) -> AsyncClient:
        return self._clients[work.command.get("name", "a")]


async def _requests(messages: list[Any], *, left_open: bool) -> AsyncIterator[Any]:
    for message in messages:
        yield message
    if left_open:
        await asyncio.Event().wait()
