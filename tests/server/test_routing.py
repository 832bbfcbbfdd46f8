"""Over the socket: who decided where a memory is, from which candidates, by which weight, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from clag.v1 import admin_service_pb2 as admin
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2

from tests.conftest import ServerMaker
from tests.support.ingest import store
from tests.support.process import ServerProcess, Stubs
from tests.support.reads import ask, clusters, get, listed

ORGANIZED = pb.AckLevel.ACK_LEVEL_ORGANIZED
SLM = types_pb2.RoutingDecider.ROUTING_DECIDER_SLM
VECTOR = types_pb2.RoutingDecider.ROUTING_DECIDER_VECTOR
DEFERRED = types_pb2.RoutingDecider.ROUTING_DECIDER_DEFERRED
TOPICS = {"b": "battery pack volt", "v": "violin sonata concert", "g": "garden rose water"}
SETTINGS = {"organize__cluster_cosine": "0.5"}


def script(server: ServerProcess, **behaviour: object) -> None:
    """Replace the script at once: a half-written one would not be JSON."""
    server.root.mkdir(parents=True, exist_ok=True)
    fresh = server.root / "script.new"
    fresh.write_text(json.dumps(behaviour), encoding="utf-8")
    fresh.rename(server.root / "script.json")


def notes(session: str, text: str) -> list[types_pb2.MemoryInput]:
    return [
        types_pb2.MemoryInput(text=f"{text} {n}", session_id=session, memory_id=f"{session}{n}") for n in range(4)
    ]


def topics(stubs: Stubs, namespace: str) -> dict[str, str]:
    """Store a session of each topic; returns the cluster of each, once all are described."""
    store(
        stubs,
        namespace,
        [note for session, text in TOPICS.items() for note in notes(session, text)],
        level=ORGANIZED,
    )
    wait(lambda: len(found := clusters(stubs, namespace)) == len(TOPICS) and all(one.title for one in found))
    wait(lambda: not any(one.routing.provisional for one in listed(stubs, namespace)))
    return {session: get(stubs, namespace, f"{session}0").cluster_id for session in TOPICS}


def wait(holds: Callable[[], bool]) -> None:
    """Ask again until it holds; the test's own time limit ends it."""
    while not holds():
        pass


def settled(stubs: Stubs, namespace: str, memory_id: str, decider: int) -> types_pb2.Memory:
    wait(lambda: get(stubs, namespace, memory_id).routing.decided_by == decider)
    return get(stubs, namespace, memory_id)


@pytest.fixture
def trusted(make_server: ServerMaker) -> ServerProcess:
    """A server whose SLM is trusted with everything."""
    server = make_server(organize__trust="full", **SETTINGS)
    script(server)
    return server.start()


def test_a_decision_of_the_slm_is_told_whole_wherever_the_memory_is(trusted: ServerProcess) -> None:
    stubs = trusted.connect()
    known = topics(stubs, "whole")
    script(trusted, choose="last")
    store(stubs, "whole", notes("n", "battery pack hums"), stream_id="new", level=ORGANIZED)
    memory = settled(stubs, "whole", "n0", SLM)
    routing = memory.routing
    assert memory.cluster_id not in ("", known["b"])
    first, *others = routing.candidates
    assert first.chosen
    assert first.cluster_id == memory.cluster_id
    assert not any(one.chosen for one in others)
    assert {one.cluster_id for one in routing.candidates} == set(known.values())
    for one in routing.candidates:
        assert one.title
        assert one.HasField("channel_score")
        assert one.HasField("channel_z")
        assert one.combined == pytest.approx(one.cosine_z + routing.slm_weight * one.channel_z, abs=1e-4)
    assert [one.combined for one in routing.candidates] == sorted(
        (o.combined for o in routing.candidates), reverse=True
    )
    assert routing.slm_weight > 0
    assert known["b"] in routing.reason
    assert routing.decide_time.seconds > 0
    assert not routing.provisional
    assert not routing.founded_cluster
    assert routing.fallback == types_pb2.FallbackCause.FALLBACK_CAUSE_UNSPECIFIED
    by_question = {
        hit.memory.memory_id: hit.memory for hit in ask(stubs, "whole", "battery pack hums", explain=True)
    }
    assert by_question["n0"].routing == routing
    assert {one.memory_id: one for one in listed(stubs, "whole")}["n0"].routing == routing


def test_a_watcher_sees_the_slm_move_a_memory_and_history_keeps_where_it_was(trusted: ServerProcess) -> None:
    stubs = trusted.connect()
    known = topics(stubs, "seen")
    script(trusted, choose="last")
    request = pb.WatchRequest(namespace="seen", kinds=[pb.CHANGE_KIND_MEMORY_MOVED], include_values=True)
    call = stubs.memory.Watch(request, timeout=60)
    assert next(call).checkpoint
    store(stubs, "seen", notes("n", "battery pack hums"), stream_id="new", level=ORGANIZED)
    moved = next(
        change
        for response in call
        for change in response.changes
        if change.memory_id == "n0" and change.old_cluster_id == known["b"]
    )
    call.cancel()
    memory = settled(stubs, "seen", "n0", SLM)
    assert moved.cluster_id == memory.cluster_id
    assert moved.memory.routing.decided_by == SLM
    page = stubs.memory.ListMemoryHistory(pb.ListMemoryHistoryRequest(namespace="seen", memory_id="n0"), timeout=20)
    causes = [one.cause for one in page.entries]
    assert pb.HistoryCause.HISTORY_CAUSE_ROUTING in causes


def test_the_decision_of_vectors_alone_says_why_the_slm_had_no_say(make_server: ServerMaker) -> None:
    expected = {
        "agentic": types_pb2.FallbackCause.FALLBACK_CAUSE_NOT_TRUSTED,
        "cosine": types_pb2.FallbackCause.FALLBACK_CAUSE_DISABLED,
    }
    for strategy, cause in expected.items():
        server = make_server(strategy, organize__trust="none", organize__strategy=strategy, **SETTINGS)
        stubs = server.start().connect()
        topics(stubs, "why")
        store(stubs, "why", notes("n", "battery pack hums"), stream_id="new", level=ORGANIZED)
        wait(lambda stubs=stubs: not get(stubs, "why", "n0").routing.provisional)  # type: ignore[misc]
        routing = get(stubs, "why", "n0").routing
        assert (routing.decided_by, routing.fallback, routing.slm_weight) == (VECTOR, cause, 0.0)
        assert [one.combined for one in routing.candidates] == [one.cosine_z for one in routing.candidates]
        assert not any(one.HasField("channel_score") for one in routing.candidates)


def test_what_was_deferred_is_decided_by_the_slm_after_a_restart(make_server: ServerMaker) -> None:
    server = make_server(organize__trust="full", **SETTINGS)
    script(server)
    stubs = server.start().connect()
    known = topics(stubs, "later")
    script(server, choose="unavailable")
    store(stubs, "later", notes("n", "battery pack hums"), stream_id="new", level=ORGANIZED)
    deferred = settled(stubs, "later", "n0", DEFERRED)
    assert deferred.cluster_id == known["b"]
    assert deferred.routing.provisional
    assert deferred.routing.fallback == types_pb2.FallbackCause.FALLBACK_CAUSE_UNAVAILABLE
    assert server.terminate() == 0
    script(server, choose="last")
    again = make_server(organize__trust="full", **SETTINGS).start().connect()
    memory = settled(again, "later", "n0", SLM)
    assert memory.cluster_id != known["b"]


def test_one_cluster_holds_everything_where_the_strategy_says_so(make_server: ServerMaker) -> None:
    stubs = make_server(organize__strategy="global").start().connect()
    store(stubs, "one", [n for s, text in TOPICS.items() for n in notes(s, text)], level=ORGANIZED)
    assert len({one.cluster_id for one in listed(stubs, "one")}) == 1


def test_a_namespace_can_route_each_memory_by_itself(trusted: ServerProcess) -> None:
    stubs = trusted.connect()
    settings = admin.NamespaceSettings(routing_unit=admin.RoutingUnit.ROUTING_UNIT_MEMORY, purpose="runs a house")
    stubs.admin.CreateNamespace(admin.CreateNamespaceRequest(namespace="single", settings=settings), timeout=20)
    store(stubs, "single", [n for s, text in TOPICS.items() for n in notes(s, text)], level=ORGANIZED)
    wait(lambda: not any(one.routing.provisional for one in listed(stubs, "single")))
    found = listed(stubs, "single")
    assert len({one.episode_id for one in found}) == len(found) == 12
    assert {hit.memory.session_id for hit in ask(stubs, "single", "violin sonata concert")[:4]} == {"v"}


def test_clusters_that_the_slm_changed_are_described_anew_without_another_arrival(trusted: ServerProcess) -> None:
    stubs = trusted.connect()
    known = topics(stubs, "anew")

    def profiles_due() -> int:
        backlog = stubs.admin.GetStats(admin.GetStatsRequest(namespace="anew"), timeout=20).backlog
        return next(one.pending for one in backlog if one.stage == admin.STAGE_PROFILE)

    script(trusted, choose="unavailable")
    store(stubs, "anew", notes("n", "battery pack hums"), stream_id="new", level=ORGANIZED)
    settled(stubs, "anew", "n0", DEFERRED)
    wait(lambda: profiles_due() == 0)
    # From here on nothing happens but the SLM's word.
    script(trusted, choose="last")
    moved_to = settled(stubs, "anew", "n0", SLM).cluster_id
    assert moved_to != known["b"]
    wait(lambda: profiles_due() == 0)
    profile = {one.cluster_id: one for one in clusters(stubs, "anew")}[moved_to]
    assert {"n0", "n1", "n2", "n3"}.intersection(profile.representative_ids)
