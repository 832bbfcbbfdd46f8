"""Counters add up, match what is listed, and none of them stays zero for want of being counted."""

from __future__ import annotations

import json

import pytest
from clag.v1 import admin_service_pb2 as admin
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2

from tests.conftest import ServerMaker
from tests.support.ingest import IngestStream, store, texts
from tests.support.process import ServerProcess, Stubs
from tests.support.reads import clusters, listed

ORGANIZED = pb.AckLevel.ACK_LEVEL_ORGANIZED
DURABLE = pb.AckLevel.ACK_LEVEL_DURABLE
State = types_pb2.MemoryState


def stats(stubs: Stubs, namespace: str = "") -> admin.GetStatsResponse:
    response: admin.GetStatsResponse = stubs.admin.GetStats(admin.GetStatsRequest(namespace=namespace), timeout=20)
    return response


def script(server: ServerProcess, **behaviour: object) -> None:
    """Replace the script at once: a half-written one would not be JSON."""
    server.root.mkdir(parents=True, exist_ok=True)
    fresh = server.root / "script.new"
    fresh.write_text(json.dumps(behaviour), encoding="utf-8")
    fresh.rename(server.root / "script.json")


def test_counters_of_a_run_add_up_and_match_what_is_listed(make_server: ServerMaker) -> None:
    server = make_server(organize__annotate="slm", ingest__max_attempts="1")
    script(server, choose="unavailable", generate=["no object at all"])
    stubs = server.start().connect()
    sent = [types_pb2.MemoryInput(text=f"battery pack {n}", memory_id=f"b{n}", session_id="b") for n in range(12)]
    sent += [types_pb2.MemoryInput(text=f"violin sonata {n}", memory_id=f"v{n}", session_id="v") for n in range(12)]
    sent += sent[:5]  # duplicates
    sent += texts("", "x" * 32_769)  # rejected
    results = store(stubs, "run", sent, level=ORGANIZED)
    script(server, unwanted="this one fails")
    failed = store(stubs, "run", texts("this one fails"), stream_id="failing", level=ORGANIZED)
    assert failed[0].state == State.MEMORY_STATE_QUARANTINED
    script(server)
    delete = pb.DeleteMemoryRequest(namespace="run", memory_id="b0")
    stubs.memory.DeleteMemory(delete, timeout=20)
    count = stats(stubs, "run")
    outcomes, memories = count.outcomes, count.memories
    assert len(results) + len(failed) == outcomes.created + outcomes.duplicate + outcomes.rejected == 32
    assert (outcomes.created, outcomes.duplicate, outcomes.rejected) == (25, 5, 2)
    assert (outcomes.deleted, outcomes.quarantined) == (1, 1)
    found = listed(stubs, "run")
    assert memories.total == outcomes.created - outcomes.deleted == len(found)
    for name in ("STORED", "EMBEDDED", "ROUTED", "EVOLVED", "QUARANTINED"):
        of_state = [memory for memory in found if memory.state == State.Value(f"MEMORY_STATE_{name}")]
        assert getattr(memories, name.lower()) == len(of_state), name
    assert memories.evolved == 23
    fallbacks = {types_pb2.FallbackCause.Name(one.cause): one.count for one in outcomes.fallbacks}
    assert sum(fallbacks.values()) == outcomes.slm_fallbacks <= outcomes.slm_requests
    assert fallbacks["FALLBACK_CAUSE_INVALID_OUTPUT"] == 24
    assert count.index.rows == 23
    whole = stats(stubs)
    assert whole.outcomes == outcomes
    assert whole.memories == memories
    assert whole.bytes_on_disk >= count.bytes_on_disk > 0


def test_deferred_decisions_are_counted_and_are_those_that_memories_carry(make_server: ServerMaker) -> None:
    server = make_server(organize__cluster_cosine="0.7", organize__trust="full")
    script(server)
    stubs = server.start().connect()
    first = [types_pb2.MemoryInput(text=f"battery pack {n} volt", session_id="b") for n in range(4)]
    second = [types_pb2.MemoryInput(text=f"violin sonata {n} concert", session_id="v") for n in range(4)]
    store(stubs, "away", [*first, *second], level=ORGANIZED)
    while not all(cluster.title for cluster in clusters(stubs, "away")):  # a vote needs profiles to choose from
        pass
    assert len(clusters(stubs, "away")) == 2
    script(server, choose="unavailable")
    third = [types_pb2.MemoryInput(text=f"battery pack {n} amperes", session_id="b2") for n in range(4)]
    store(stubs, "away", third, stream_id="third", level=ORGANIZED)
    deferred = types_pb2.RoutingDecider.ROUTING_DECIDER_DEFERRED
    carrying: list[types_pb2.Memory] = []
    while not carrying:  # the vote comes behind the acknowledgement
        carrying = [memory for memory in listed(stubs, "away") if memory.routing.decided_by == deferred]
    while not stats(stubs, "away").outcomes.deferred:  # counted right after it was recorded
        pass
    assert len({memory.episode_id for memory in carrying}) == stats(stubs, "away").outcomes.deferred == 1


def test_what_waits_is_shown_with_its_age_and_the_reason_of_the_last_failure(make_server: ServerMaker) -> None:
    server = make_server(ingest__retry_base_s="60")
    script(server, unwanted="refused")
    stubs = server.start().connect()
    store(stubs, "stuck", texts("refused one", "refused two"), level=DURABLE)
    embed = admin.StageBacklog()
    while embed.retrying < 2:
        embed = next(one for one in stats(stubs, "stuck").backlog if one.stage == admin.Stage.STAGE_EMBED)
    assert embed.pending == 2
    assert embed.last_error
    assert embed.HasField("oldest_age")
    assert {one.stage for one in stats(stubs).backlog} == {
        number for name, number in admin.Stage.items() if name != "STAGE_UNSPECIFIED"
    }


def test_open_episodes_and_open_streams_are_counted_while_they_are_open(stubs: Stubs, namespace: str) -> None:
    with IngestStream(stubs, namespace, level=pb.AckLevel.ACK_LEVEL_SEARCHABLE) as stream:
        stream.batch([types_pb2.MemoryInput(text="the dock is B3", session_id="s")])
        stream.acked()
        during = stats(stubs, namespace)
        assert (during.open_streams, during.episodes, during.open_episodes) == (1, 1, 1)
        stream.finish()
    after = stats(stubs, namespace)
    while after.open_episodes:  # closed by the pipeline right after the end of the stream
        after = stats(stubs, namespace)
    assert (after.open_streams, after.episodes) == (0, 1)


@pytest.mark.parametrize("included", [True, False])
def test_listed_memories_carry_their_embeddings_when_asked(stubs: Stubs, namespace: str, *, included: bool) -> None:
    store(stubs, namespace, texts("the dock is B3", "lunch is at noon"))
    request = pb.ListMemoriesRequest(namespace=namespace, include_embeddings=included)
    found = stubs.memory.ListMemories(request, timeout=20).memories
    assert [len(memory.embedding) for memory in found] == ([64, 64] if included else [0, 0])
