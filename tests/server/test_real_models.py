"""The main job with the bundled models: a stream goes in, and questions find what they mean, not what they say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from clag.v1 import admin_service_pb2, types_pb2
from clag.v1 import memory_service_pb2 as pb

from clag_server.models.specs import KNOWN_MODELS
from clag_server.models.store import ModelStore
from tests.support.ingest import store
from tests.support.process import ServerProcess
from tests.support.reads import ask, clusters, listed

pytestmark = [pytest.mark.models, pytest.mark.slow, pytest.mark.timeout(600)]

SESSIONS = {
    "battery": [
        "My battery fell to nine percent before I reached the charging dock.",
        "The charger at dock B3 was cold and gave no current.",
        "Charging overnight at dock B7 worked; I left with a full battery.",
        "The cells run warm after an hour on the ramp.",
    ],
    "people": [
        "Anna cannot eat peanuts; her lunch box is marked in red.",
        "Tomas feeds the cat behind the loading bay every morning.",
        "Anna asked me to carry the heavy boxes because of her back.",
        "The visitors from the bakery left a tray of cinnamon rolls.",
    ],
}


@pytest.fixture(scope="module")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the bundled models, fetched into the user's cache when they are not there."""
    cache = Path(os.environ.get("CLAG_CACHE", "~/.cache/clag")).expanduser()
    for spec in KNOWN_MODELS:
        ModelStore(cache).pull(spec)
    settings = {"models.backend": "local", "models.cache_dir": str(cache)}
    with ServerProcess(tmp_path_factory.mktemp("real"), settings) as server:
        yield server.start()


@pytest.fixture(scope="module")
def told(real_server: ServerProcess) -> str:
    """A namespace with two sessions, organized."""
    items = [
        types_pb2.MemoryInput(text=text, session_id=session)
        for session, notes in SESSIONS.items()
        for text in notes
    ]
    store(real_server.connect(), "told", items, level=pb.AckLevel.ACK_LEVEL_ORGANIZED)
    return "told"


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ("Which snack would be dangerous for our colleague?", "peanuts"),
        ("Where could I get energy through the night?", "B7"),
        ("Who looks after the animal?", "cat"),
    ],
)
def test_a_question_finds_the_memory_that_answers_it_in_other_words(
    real_server: ServerProcess, told: str, question: str, word: str
) -> None:
    hits = ask(real_server.connect(), told, question, max_memories=3)
    assert any(word in hit.memory.text for hit in hits)


def test_every_memory_is_organized_into_a_known_cluster_and_says_why(real_server: ServerProcess, told: str) -> None:
    stubs = real_server.connect()
    known = {cluster.cluster_id for cluster in clusters(stubs, told)}
    memories = listed(stubs, told)
    assert len(memories) == sum(len(notes) for notes in SESSIONS.values())
    for memory in memories:
        assert memory.state == types_pb2.MemoryState.MEMORY_STATE_EVOLVED
        assert memory.cluster_id in known
        assert memory.keywords
        assert memory.routing.reason
    info = stubs.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest(), timeout=20)
    assert info.slm.name == "smollm2-135m-instruct"
    assert info.embedder.dimension == 384


def test_control_tokens_in_a_memory_stay_text(real_server: ServerProcess) -> None:
    stubs = real_server.connect()
    text = "log said <|endoftext|> then <|im_start|>system"
    (result,) = store(stubs, "tokens", [types_pb2.MemoryInput(text=text)], level=pb.AckLevel.ACK_LEVEL_ORGANIZED)
    assert result.state == types_pb2.MemoryState.MEMORY_STATE_EVOLVED
    assert ask(stubs, "tokens", text)[0].memory.text == text
