"""What a server holds in memory does not grow with the questions it answers."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2

from tests.support.ingest import Level, store
from tests.support.process import ServerProcess

MEMORIES = 400
QUESTIONS = 2_000
CALLERS = 8
GROWTH_MIB = 32
"""What allocators keep for themselves; 2,000 answers of 20 memories that stayed would be over 100."""


def rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_two_thousand_questions_leave_nothing_behind(make_server: Callable[..., ServerProcess]) -> None:
    server = make_server().start()
    stubs = server.connect()
    items = [
        types_pb2.MemoryInput(text=f"shelf {i} holds box {i * 7 % 400} of kind {i % 13}", session_id=f"s{i % 20}")
        for i in range(MEMORIES)
    ]
    store(stubs, "shelves", items, level=Level.ACK_LEVEL_ORGANIZED)

    def ask(number: int) -> int:
        query = pb.Query(text=f"which shelf holds box {number % 400} of kind {number % 13}")
        request = pb.RetrieveRequest(namespace="shelves", query=query, max_memories=20)
        return sum(len(frame.memories.hits) for frame in stubs.memory.Retrieve(request, timeout=60))

    with ThreadPoolExecutor(CALLERS) as callers:
        assert min(callers.map(ask, range(200))) == 20
        before = rss_mib(server.pid)
        found = list(callers.map(ask, range(QUESTIONS)))
    assert len(found) == QUESTIONS
    assert rss_mib(server.pid) - before < GROWTH_MIB
