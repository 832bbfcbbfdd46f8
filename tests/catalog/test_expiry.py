"""Memories are forgotten when their time has come: their own, or the namespace's default."""

from __future__ import annotations

from clag_server.catalog.api import Catalog
from clag_server.types.ingest import IngestItem
from clag_server.types.memory import NewMemory
from clag_server.types.namespace import NamespaceSettings
from tests.catalog import support

NOW = support.NOW
HOUR_NS = 3600 * 10**9
HOURLY = NamespaceSettings(default_time_to_live_ns=HOUR_NS)


async def expiring(catalog: Catalog, ns: int, *times_ns: int | None) -> None:
    """Store memories m-0, m-1, ... that expire then."""
    items = [
        NewMemory(text="x", memory_id=f"m-{i}", session_id="s", expire_time_ns=time_ns)
        for i, time_ns in enumerate(times_ns)
    ]
    await support.store(catalog, ns, items)


async def test_those_that_expired_first_go_first_up_to_the_limit(catalog: Catalog, ns: int) -> None:
    await expiring(catalog, ns, NOW + 3, None, NOW + 1, NOW + 2, NOW + 4)
    first = await catalog.delete_expired(ns, now_ns=NOW + 3, limit=2)
    assert list(first.memory_ids) == ["m-2", "m-3"]
    rest = await catalog.delete_expired(ns, now_ns=NOW + 3, limit=9)
    assert list(rest.memory_ids) == ["m-0"]
    assert list((await catalog.delete_expired(ns, now_ns=NOW + 3, limit=9)).keys) == []
    left = await catalog.list_memories(ns, where=None, after=0, limit=9)
    assert [memory.memory_id for memory in left.memories] == ["m-1", "m-4"]


async def test_an_expired_memory_is_gone_from_its_place_too(catalog: Catalog, ns: int) -> None:
    await support.organized(catalog, ns)
    update = NewMemory(text="", expire_time_ns=NOW)
    await catalog.update(ns, "m-4", update, fields=frozenset({"expire_time_ns"}), lexical=None, etag="", now_ns=NOW)
    batch = await catalog.delete_expired(ns, now_ns=NOW, limit=9)
    assert (list(batch.memory_ids), batch.episodes, batch.clusters) == (["m-4"], frozenset({2}), frozenset({1}))
    await support.assert_consistent(catalog, ns)


async def test_the_next_expiry_of_each_namespace_is_known(catalog: Catalog) -> None:
    a, b = (await support.namespace(catalog, "a")).ns, (await support.namespace(catalog, "b")).ns
    await support.namespace(catalog, "empty")
    await expiring(catalog, a, NOW + 9, NOW + 5, None)
    await expiring(catalog, b, NOW - 2)
    assert await catalog.next_expiry() == {a: NOW + 5, b: NOW - 2}
    await catalog.delete(a, "m-1", etag="", now_ns=NOW)
    await catalog.mark_deleting(b, now_ns=NOW)
    assert await catalog.next_expiry() == {a: NOW + 9}


async def test_memories_without_a_time_get_the_namespaces_default(catalog: Catalog) -> None:
    ns = (await catalog.create_namespace("robot", support.PIN, HOURLY, now_ns=NOW)).ns
    await expiring(catalog, ns, None, NOW + 5)
    assert (await catalog.memory(ns, "m-0")).expire_time_ns == NOW + HOUR_NS
    assert (await catalog.memory(ns, "m-1")).expire_time_ns == NOW + 5
    created = await catalog.create(ns, NewMemory(text="x", event_time_ns=1), request_id="r", now_ns=NOW + 7)
    assert (await catalog.memory(ns, created.items[0].memory_id)).expire_time_ns == NOW + 7 + HOUR_NS
    ref = (await catalog.open_stream(ns, "s")).ref
    streamed: list[IngestItem] = [NewMemory(text="x", memory_id="streamed")]
    await catalog.append(ns, streamed, first_seq=1, stream=ref, now_ns=NOW + 9)
    assert (await catalog.memory(ns, "streamed")).expire_time_ns == NOW + 9 + HOUR_NS


async def test_a_new_default_holds_for_what_comes_after_it(catalog: Catalog) -> None:
    namespace = await support.namespace(catalog)
    await expiring(catalog, namespace.ns, None)
    await catalog.update_namespace(namespace.ns, HOURLY, etag="", now_ns=NOW)
    await support.store(catalog, namespace.ns, [NewMemory(text="x", memory_id="later")])
    await catalog.update_namespace(namespace.ns, NamespaceSettings(), etag="", now_ns=NOW)
    await support.store(catalog, namespace.ns, [NewMemory(text="x", memory_id="last")])
    found = [(await catalog.memory(namespace.ns, name)).expire_time_ns for name in ("m-0", "later", "last")]
    assert found == [None, NOW + HOUR_NS, None]
