"""A client that sends and never reads: the server takes the window, refuses what is beyond, and drops nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import pytest
from clag.v1 import memory_service_pb2 as pb

from clag_server.api.facts import ModelFacts, ServerFacts
from clag_server.api.ingest import IngestCall
from clag_server.api.interceptors.drain import DrainGate
from clag_server.contract.codec import Frame
from clag_server.memory.config import IngestConfig
from clag_server.memory.service import MemoryService
from clag_server.models.api import EngineState, EngineStatus
from clag_server.types.errors import WindowExceeded
from clag_server.types.ingest import Ack, IngestItem, StreamPosition, StreamRef, StreamTotals
from clag_server.types.memory import NewMemory
from tests.conftest import ServerMaker
from tests.support.ingest import IngestStream, texts
from tests.support.reads import listed
from tests.support.status import read

ORGANIZED = pb.AckLevel.ACK_LEVEL_ORGANIZED
WINDOW = 128


def notes(first: int, last: int) -> list[str]:
    return [f"note {number}" for number in range(first, last + 1)]


def test_the_window_is_taken_whole_what_is_beyond_is_refused_and_nothing_is_dropped(
    make_server: ServerMaker,
) -> None:
    server = make_server(ingest__window_items=str(WINDOW), ingest__max_batch_items="64")
    server.root.mkdir(parents=True)
    (server.root / "script.json").write_text(json.dumps({"embed": "unavailable"}), encoding="utf-8")
    stubs = server.start().connect()
    with IngestStream(stubs, "slow", level=ORGANIZED) as stream:
        assert stream.opened.window_items == WINDOW
        stream.batch(texts(*notes(1, 64)))
        stream.batch(texts(*notes(65, WINDOW)))
        stream.batch(texts("one more than the window"))
        stream.batch(texts("and another"))
        failure = read(stream.failure())  # the first that is read after `opened`
    assert (failure.code, failure.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "WINDOW_EXCEEDED")
    assert failure.facts["window_items"] == str(WINDOW)
    assert [result.seq for result in stream.results] == list(range(1, WINDOW + 1))
    assert [memory.text for memory in listed(stubs, "slow", page_size=1000)] == notes(1, WINDOW)
    with IngestStream(stubs, "slow") as again:
        assert again.opened.next_seq == WINDOW + 1
        again.batch(texts("one more than the window"))
        assert again.finish().created == WINDOW + 1
    assert [memory.text for memory in listed(stubs, "slow", page_size=1000)] == [
        *notes(1, WINDOW),
        "one more than the window",
    ]


@dataclass
class AckingSession:
    """A session that acknowledges whatever it stores at once."""

    window_items: int
    stored: list[str] = field(default_factory=list)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    news: asyncio.Queue[Ack | None] = field(default_factory=asyncio.Queue)
    position: StreamPosition = field(default_factory=lambda: StreamPosition(StreamRef("s", 1), 1, 0, 0, 0))

    async def append(self, first_seq: int, items: Sequence[IngestItem]) -> None:
        assert first_seq == len(self.stored) + 1
        self.stored += [item.text for item in items if isinstance(item, NewMemory)]
        through = len(self.stored)
        self.news.put_nowait(Ack(through, through, self.window_items, (), 1))

    async def finish(self, last_seq: int) -> StreamTotals:
        return StreamTotals(last_seq, 0, 0, 0, 1)

    async def acks(self) -> AsyncIterator[Ack]:
        while (ack := await self.news.get()) is not None:
            yield ack

    async def close(self) -> None:
        self.closed.set()
        self.news.put_nowait(None)


@dataclass
class Unread:
    """A call whose client takes the first answer only, until it reads again."""

    reads: asyncio.Event = field(default_factory=asyncio.Event)
    answers: list[pb.IngestResponse] = field(default_factory=list)

    async def write(self, response: pb.IngestResponse) -> None:
        self.answers.append(response)
        if response.WhichOneof("frame") != "opened":
            await self.reads.wait()


class OneSession:
    """A domain with one stream."""

    def __init__(self, session: AckingSession) -> None:
        self._session = session

    async def open_ingest(self, *_: object, **__: object) -> AckingSession:
        return self._session


async def endless(taken: list[int]) -> AsyncIterator[Frame[pb.IngestRequest]]:
    """A client that opens a stream and sends single items for ever."""
    yield Frame(pb.IngestRequest(open=pb.IngestOpen(namespace="n", stream_id="s")), {})
    while True:
        taken.append(len(taken) + 1)
        yield Frame(pb.IngestRequest(batch=pb.IngestBatch(first_seq=taken[-1], items=texts("x"))), {})
        await asyncio.sleep(0)


async def test_acknowledgements_that_nobody_reads_give_no_credit_and_stop_the_reading() -> None:
    session, client, taken = AckingSession(window_items=4), Unread(), list[int]()
    embedder = ModelFacts(EngineStatus(EngineState.READY, "tiny"), dim=8)
    facts = ServerFacts(IngestConfig(), 30.0, 0, (), embedder=lambda: embedder, slm=lambda: embedder)
    call = IngestCall(
        endless(taken), cast("Any", client), cast("MemoryService", OneSession(session)), facts, DrainGate()
    )
    running = asyncio.create_task(call.run())
    await session.closed.wait()  # the stream is refused; its last acknowledgement still waits for its reader
    told = client.answers[-1].ack.acked_through
    assert len(session.stored) == told + session.window_items
    for _ in range(1000):
        await asyncio.sleep(0)
    assert len(taken) <= len(session.stored) + 10  # a few frames are decoded ahead, then the reading stops
    assert not running.done()
    client.reads.set()
    with pytest.raises(WindowExceeded):
        await running
