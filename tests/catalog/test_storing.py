"""What is stored comes back as it was given."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest

from clag_server.catalog.api import Catalog, EmbedderPin
from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.types.errors import InvalidField, NotFound, RequestIdReused, StorageFailed
from clag_server.types.ingest import Disposition
from clag_server.types.memory import AnnotationSource, Memory, MemoryKind, MemoryState, NewMemory
from tests.catalog import support
from tests.catalog.conftest import Reopen

NOW = support.NOW
DAY_NS = 24 * 3600 * 10**9


async def test_every_field_of_a_memory_round_trips_through_a_restart(reopen: Reopen) -> None:
    catalog = await reopen()
    ns = (await support.namespace(catalog)).ns
    new = NewMemory(
        text="猫は屋根にいる 🐈 \U0010fffd <|endoftext|> \x01 '; drop table memories",
        memory_id="id/1",
        kind=MemoryKind.TOOL_OUTPUT,
        task="find the cat",
        speaker="camera",
        session_id="night shift",
        tags=("roof", "猫", 'quo"te'),
        attributes={"n": 1, "x": 1.0, "yes": True, "s": "1", "list": ("a", "b"), "empty": (), "ns": -(2**63)},
        importance=0.1 + 0.2,
        event_time_ns=-5,
        expire_time_ns=NOW + 1,
        supersedes=("gone",),
        embedding=support.unit(3),
    )
    (stored,) = await support.store(catalog, ns, [new])
    catalog = await reopen()
    found = await catalog.memory(ns, "id/1", embedding=True)
    assert found.embedding is not None
    np.testing.assert_array_equal(found.embedding, support.unit(3))
    assert stored.key is not None
    expected = Memory(
        key=stored.key,
        memory_id="id/1",
        text=new.text,
        kind=new.kind,
        task=new.task,
        speaker=new.speaker,
        session_id=new.session_id,
        session_position=0,
        tags=new.tags,
        attributes=new.attributes,
        importance=new.importance,
        confidence=1.0,
        event_time_ns=-5,
        create_time_ns=NOW,
        update_time_ns=NOW,
        expire_time_ns=NOW + 1,
        context="",
        keywords=(),
        evolved_tags=(),
        links=(),
        cluster=None,
        episode=None,
        state=MemoryState.STORED,
        routing=None,
        supersedes=("gone",),
        superseded_by="",
        access_count=0,
        last_access_time_ns=None,
        revision=await catalog.revision(),
        error="",
        has_embedding=True,
        embedding=None,
        client_embedding=True,
        annotated_by=AnnotationSource.NONE,
    )
    assert await catalog.memory(ns, "id/1") == expected
    assert {key: type(value) for key, value in found.attributes.items()} == {
        key: type(value) for key, value in new.attributes.items()
    }


async def test_ids_are_made_in_order_of_time_and_are_unique(catalog: Catalog, ns: int) -> None:
    items = await support.store(catalog, ns, [NewMemory(text=str(i)) for i in range(3_000)])
    ids = [item.memory_id for item in items]
    assert len(set(ids)) == 3_000
    assert ids == sorted(ids)


async def test_the_event_time_is_the_time_of_storing_unless_given(catalog: Catalog, ns: int) -> None:
    await support.store(catalog, ns, [NewMemory(text="now", memory_id="a")])
    assert (await catalog.memory(ns, "a")).event_time_ns == NOW


async def test_positions_run_within_each_session_across_batches(catalog: Catalog, ns: int) -> None:
    sessions = ["a", "b", "a", "", "b", "a", ""]
    for batch in (sessions[:3], sessions[3:]):
        await support.store(catalog, ns, [NewMemory(text="x", session_id=session) for session in batch])
    page = await catalog.list_memories(ns, where=None, after=0, limit=100)
    assert [(memory.session_id, memory.session_position) for memory in page.memories] == [
        ("a", 0), ("b", 0), ("a", 1), ("", 0), ("b", 1), ("a", 2), ("", 1),
    ]  # fmt: skip


async def test_a_newer_memory_marks_those_it_supersedes(catalog: Catalog, ns: int) -> None:
    await support.store(catalog, ns, [NewMemory(text="dock is B3", memory_id="old")])
    before = await catalog.memory(ns, "old")
    newer = NewMemory(text="dock moved to B7", memory_id="new", supersedes=("old", "no such memory", "new"))
    await support.store(catalog, ns, [newer])
    after = await catalog.memory(ns, "old")
    assert (after.superseded_by, after.text) == ("new", "dock is B3")
    assert after.revision > before.revision
    assert (await catalog.memory(ns, "new")).superseded_by == ""


async def test_a_page_continues_after_the_last_key(catalog: Catalog, ns: int) -> None:
    keys = await support.store_keys(catalog, ns, 25)
    seen: list[int] = []
    after: int | None = 0
    while after is not None:
        page = await catalog.list_memories(ns, where=None, after=after, limit=10)
        seen += [memory.key for memory in page.memories]
        after = page.next_after
    assert seen == keys


async def test_memories_come_in_the_order_asked_without_missing_ones(catalog: Catalog, ns: int) -> None:
    a, b, c = await support.store_keys(catalog, ns, 3)
    found = await catalog.memories(ns, [c, 999_999, a, c, b])
    assert [memory.key for memory in found] == [c, a, c, b]


async def test_the_same_request_id_stores_one_memory(reopen: Reopen) -> None:
    catalog = await reopen()
    ns = (await support.namespace(catalog)).ns
    memory = NewMemory(text="once", attributes={"a": 1})
    first = await catalog.create(ns, memory, request_id="r", now_ns=NOW)
    catalog = await reopen()
    again = await catalog.create(ns, memory, request_id="r", now_ns=NOW + DAY_NS - 1)
    assert again.items[0].disposition is Disposition.DUPLICATE
    assert (again.items[0].memory_id, again.items[0].key) == (first.items[0].memory_id, first.items[0].key)
    with pytest.raises(RequestIdReused):
        await catalog.create(ns, NewMemory(text="once", attributes={"a": 1.0}), request_id="r", now_ns=NOW)
    later = await catalog.create(ns, memory, request_id="r", now_ns=NOW + DAY_NS + 1)
    assert later.items[0].disposition is Disposition.CREATED


async def test_creates_without_a_request_id_are_never_repetitions(catalog: Catalog, ns: int) -> None:
    for _ in range(2):
        result = await catalog.create(ns, NewMemory(text="same"), request_id="", now_ns=NOW)
        assert result.items[0].disposition is Disposition.CREATED


async def test_a_memory_that_cannot_be_stored_is_refused_with_the_field(catalog: Catalog, ns: int) -> None:
    with pytest.raises(InvalidField) as refused:
        await catalog.create(ns, NewMemory(text="x", importance=float("inf")), request_id="r", now_ns=NOW)
    assert refused.value.violations[0].field == "memory.importance"


async def test_revisions_grow_with_every_write_over_all_namespaces(reopen: Reopen) -> None:
    catalog = await reopen()
    a, b = (await support.namespace(catalog, "a")).ns, (await support.namespace(catalog, "b")).ns
    seen = [0]
    for ns in (a, b, a):
        result = await catalog.append(ns, [NewMemory(text="x")], first_seq=1, stream=None, now_ns=NOW)
        assert result.revision > seen[-1]
        assert await catalog.revision() == result.revision
        seen.append(result.revision)
    catalog = await reopen()
    assert await catalog.revision() == seen[-1]


async def test_accesses_are_counted_without_a_new_revision(catalog: Catalog, ns: int) -> None:
    key, other = await support.store_keys(catalog, ns, 2)
    before = await catalog.revision()
    for when in (NOW + 1, NOW + 2):
        await catalog.touch(ns, [key], now_ns=when)
    touched, untouched = await catalog.memories(ns, [key, other])
    assert (touched.access_count, touched.last_access_time_ns) == (2, NOW + 2)
    assert (untouched.access_count, untouched.last_access_time_ns) == (0, None)
    assert await catalog.revision() == before


async def test_a_namespace_keeps_the_embedder_it_was_made_with(reopen: Reopen) -> None:
    catalog = await reopen()
    made = await support.namespace(catalog)
    catalog = await reopen()
    other = EmbedderPin("other", "f2", 99)
    assert await catalog.ensure_namespace("robot", other, create=True) == made
    assert made.embedder == support.PIN
    with pytest.raises(NotFound):
        await catalog.ensure_namespace("nobody", other, create=False)
    with pytest.raises(NotFound):
        await catalog.get_namespace("nobody")
    assert [namespace.name for namespace in await catalog.list_namespaces()] == ["robot"]


async def test_only_the_owner_may_read_the_files(catalog: Catalog, ns: int, database_file: Path) -> None:
    await support.store_keys(catalog, ns, 1)
    files = sorted(database_file.parent.iterdir())
    assert "catalog.db-wal" in {file.name for file in files}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(database_file.parent.stat().st_mode) == 0o700


async def test_a_closed_catalog_says_so(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    with pytest.raises(StorageFailed):
        await catalog.revision()
    await catalog.open()
    await catalog.close()
    with pytest.raises(StorageFailed):
        await catalog.revision()
    with pytest.raises(StorageFailed):
        await support.namespace(catalog)
