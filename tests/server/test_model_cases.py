"""Models that answer badly, are missing, or are not those that a namespace was embedded by."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator

import grpc
import pytest
from clag.v1 import admin_service_pb2, types_pb2
from clag.v1 import memory_service_pb2 as pb

from tests.conftest import ServerMaker
from tests.support.ingest import store
from tests.support.process import ServerProcess, Stubs
from tests.support.reads import ask, clusters, get, listed
from tests.support.status import refused

ORGANIZED = pb.AckLevel.ACK_LEVEL_ORGANIZED

UNUSABLE = [
    'Sure! {"choice":"c2"} Hope it helps',
    '{"type": "object", "properties": {"choice": {"type": "string"}}}',
    '{"choice": "c',
    "",
    "again and " * 2_000,
]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose script these tests rewrite; it lets the SLM annotate."""
    with ServerProcess(tmp_path_factory.mktemp("scripted"), {"organize.annotate": "slm"}) as server:
        yield server.start()


def script(server: ServerProcess, **behaviour: object) -> None:
    """Replace the script at once: a half-written one would not be JSON."""
    fresh = server.root / "script.new"
    fresh.write_text(json.dumps(behaviour), encoding="utf-8")
    fresh.rename(server.root / "script.json")


def two_topics(size: int) -> list[types_pb2.MemoryInput]:
    """Memories of two sessions that share no words."""
    battery = [f"battery pack {n} charge low voltage cell" for n in range(size)]
    music = [f"violin concert orchestra evening sonata {n}" for n in range(size)]
    return [types_pb2.MemoryInput(text=text, session_id="b") for text in battery] + [
        types_pb2.MemoryInput(text=text, session_id="m") for text in music
    ]


def outcomes(stubs: Stubs, namespace: str) -> admin_service_pb2.OutcomeCounters:
    request = admin_service_pb2.GetStatsRequest(namespace=namespace)
    return stubs.admin.GetStats(request, timeout=20).outcomes


@pytest.mark.parametrize("answer", UNUSABLE, ids=["chatter", "echoed schema", "cut", "empty", "repetition"])
def test_an_unusable_annotation_falls_back_and_is_counted(
    scripted: ServerProcess, namespace: str, answer: str
) -> None:
    script(scripted, generate=[answer])
    stubs = scripted.connect()
    store(stubs, namespace, two_topics(3), level=ORGANIZED)
    for memory in listed(stubs, namespace):
        assert memory.state == types_pb2.MemoryState.MEMORY_STATE_EVOLVED
        assert memory.annotated_by == types_pb2.AnnotationSource.ANNOTATION_SOURCE_STATISTICS
        assert memory.keywords
        assert "Hope it helps" not in memory.context
    counted = outcomes(stubs, namespace)
    assert counted.slm_fallbacks >= 6
    assert counted.slm_requests >= counted.slm_fallbacks


@pytest.mark.parametrize("choose", ["nan", "short", "refuse", "unavailable", "last"])
def test_a_bad_vote_makes_no_cluster_and_moves_nothing_astray(
    scripted: ServerProcess, namespace: str, choose: str
) -> None:
    script(scripted, choose=choose)
    stubs = scripted.connect()
    store(stubs, namespace, two_topics(12), level=ORGANIZED)
    found = clusters(stubs, namespace)
    known = {cluster.cluster_id for cluster in found}
    by_session: dict[str, set[str]] = {}
    for memory in listed(stubs, namespace):
        by_session.setdefault(memory.session_id, set()).add(memory.cluster_id)
    assert by_session["b"].isdisjoint(by_session["m"])
    assert by_session["b"] | by_session["m"] <= known
    assert len(found) <= 4


def test_memories_stay_retrievable_while_the_slm_is_away(scripted: ServerProcess, namespace: str) -> None:
    script(scripted, choose="unavailable", generate="unavailable")
    stubs = scripted.connect()
    results = store(stubs, namespace, two_topics(4), level=pb.AckLevel.ACK_LEVEL_SEARCHABLE)
    assert ask(stubs, namespace, "battery pack 2")[0].memory.session_id == "b"
    info = stubs.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest(), timeout=20)
    assert info.slm.state == admin_service_pb2.ModelState.MODEL_STATE_UNAVAILABLE
    script(scripted)
    assert get(stubs, namespace, results[0].memory_id).text.startswith("battery pack 0")


def test_a_namespace_of_another_embedder_is_refused_with_the_command(make_server: ServerMaker) -> None:
    server = make_server().start()
    store(server.connect(), "pinned", two_topics(1))
    assert server.terminate() == 0
    with sqlite3.connect(server.data_dir / "catalog.db") as catalog:
        catalog.execute("UPDATE namespaces SET embedder_name = 'another-model', embedder_fingerprint = 'f00d'")
    again = make_server().start()
    stubs = again.connect()
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "MODEL_MISMATCH") as failures:
        store(stubs, "pinned", two_topics(1), stream_id="second")
    assert "clag reindex --namespace pinned" in failures[0].message
    assert failures[0].facts["embedding_model"] == "another-model"
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "MODEL_MISMATCH"):
        ask(stubs, "pinned", "battery")
    assert len(listed(stubs, "pinned")) == 2  # reading needs no embedder
    store(stubs, "fresh", two_topics(1))  # other namespaces work


def test_a_missing_model_ends_the_start_with_one_line_and_the_command(make_server: ServerMaker) -> None:
    server = make_server(models__backend="local", models__cache_dir="/nonexistent/cache").spawn()
    assert server.wait() == 4
    (line,) = [line for line in server.log.splitlines() if "cannot start" in line]
    assert "all-minilm-l6-v2 is missing" in line
    assert "clag models pull" in line
    assert "Traceback" not in server.log
