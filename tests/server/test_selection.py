"""Over the socket: the SLM's choice among the best clusters, who may ask for it, and what the trace tells of it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2

from tests.conftest import ServerMaker
from tests.support.ingest import store
from tests.support.process import ServerProcess, Stubs
from tests.support.reads import clusters, listed

TOPICS = {"b": "battery pack volt", "v": "violin sonata concert", "g": "garden rose water"}


def script(server: ServerProcess, **behaviour: object) -> None:
    """Replace the script at once: a half-written one would not be JSON."""
    server.root.mkdir(parents=True, exist_ok=True)
    fresh = server.root / "script.new"
    fresh.write_text(json.dumps(behaviour), encoding="utf-8")
    fresh.rename(server.root / "script.json")


def wait(holds: Callable[[], bool]) -> None:
    """Ask again until it holds; the test's own time limit ends it."""
    while not holds():
        pass


@pytest.fixture
def trusted(make_server: ServerMaker) -> ServerProcess:
    """A server whose SLM is trusted with everything."""
    server = make_server(organize__trust="full", organize__cluster_cosine="0.5", retrieve__choice_wait_s="0.6")
    script(server)
    return server.start()


def fill(stubs: Stubs) -> None:
    """Store a session of each topic; returns once all clusters are described and settled."""
    notes = [
        types_pb2.MemoryInput(text=f"{text} {n}", session_id=session)
        for session, text in TOPICS.items()
        for n in range(4)
    ]
    store(stubs, "notes", notes, level=pb.ACK_LEVEL_ORGANIZED)
    wait(lambda: len(found := clusters(stubs, "notes")) == len(TOPICS) and all(one.title for one in found))
    wait(lambda: not any(one.routing.provisional for one in listed(stubs, "notes")))


def answer(stubs: Stubs, slm_use: pb.SlmUse.ValueType = pb.SLM_USE_AUTO) -> pb.GetContextResponse:
    request = pb.RetrieveRequest(
        namespace="notes", query=pb.Query(text="volt of the battery"), slm_use=slm_use, explain=True
    )
    return stubs.memory.GetContext(pb.GetContextRequest(retrieve=request), timeout=30)


def test_a_choice_is_told_with_the_votes_on_every_cluster_and_its_time(trusted: ServerProcess) -> None:
    stubs = trusted.connect()
    fill(stubs)
    script(trusted, choose="last")
    told = answer(stubs)
    assert told.clusters.fallback == types_pb2.FALLBACK_CAUSE_UNSPECIFIED
    candidates = [one for one in told.clusters.candidates if one.HasField("slm_vote")]
    assert len(candidates) == len(TOPICS)
    chosen = max(candidates, key=lambda one: one.slm_vote)
    assert [one.cluster_id for one in candidates if one.reason.startswith("chosen by the SLM")] == [
        chosen.cluster_id
    ]
    assert told.done.timings.slm_time.ToNanoseconds() > 0
    assert "choice" in {part.name for hit in told.memories.hits for part in hit.score_parts}
    assert not told.done.degraded


def test_a_question_may_forbid_the_choice(trusted: ServerProcess) -> None:
    stubs = trusted.connect()
    fill(stubs)
    script(trusted, choose="last")
    told = answer(stubs, pb.SLM_USE_NEVER)
    assert told.clusters.fallback == types_pb2.FALLBACK_CAUSE_DISABLED
    assert not any(one.HasField("slm_vote") for one in told.clusters.candidates)
    assert not told.done.timings.HasField("slm_time") or told.done.timings.slm_time.ToNanoseconds() == 0


@pytest.mark.parametrize(
    ("choose", "cause", "kind"),
    [
        ("hang", types_pb2.FALLBACK_CAUSE_TIMEOUT, pb.DEGRADATION_KIND_SLM_SKIPPED),
        ("unavailable", types_pb2.FALLBACK_CAUSE_UNAVAILABLE, pb.DEGRADATION_KIND_SLM_UNAVAILABLE),
    ],
)
def test_a_question_is_answered_without_an_slm_that_is_slow_or_away(
    trusted: ServerProcess, choose: str, cause: int, kind: int
) -> None:
    stubs = trusted.connect()
    fill(stubs)
    script(trusted, choose=choose)
    told = answer(stubs)
    assert told.memories.hits[0].memory.session_id == "b"
    assert told.clusters.fallback == cause
    assert [one.kind for one in told.done.degraded] == [kind]


def test_an_slm_that_is_not_trusted_is_asked_only_by_a_question_that_insists(make_server: ServerMaker) -> None:
    server = make_server(organize__cluster_cosine="0.5")
    script(server, choose="last")
    stubs = server.start().connect()
    fill(stubs)
    assert answer(stubs).clusters.fallback == types_pb2.FALLBACK_CAUSE_NOT_TRUSTED
    told = answer(stubs, pb.SLM_USE_ALWAYS)
    assert told.clusters.fallback == types_pb2.FALLBACK_CAUSE_UNSPECIFIED
    assert any(one.HasField("slm_vote") for one in told.clusters.candidates)
