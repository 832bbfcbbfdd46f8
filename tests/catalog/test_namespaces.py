"""Namespaces are made, set and deleted as wholes; one that goes takes no more writes and leaves nothing behind."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from clag_server.catalog.api import Catalog, Evolution, Namespace
from clag_server.types.cluster import PlacementPlan
from clag_server.types.errors import AlreadyExists, EtagMismatch, NamespaceDeleted, NotFound
from clag_server.types.filters import And
from clag_server.types.memory import NewMemory
from clag_server.types.namespace import NamespaceSettings, RoutingUnit
from tests.catalog import support
from tests.catalog.conftest import Reopen

NOW = support.NOW
HOUR_NS = 3600 * 10**9
EVERYTHING = NamespaceSettings(
    purpose="keep the 猫 warm",
    routing_unit=RoutingUnit.MEMORY,
    default_time_to_live_ns=HOUR_NS,
    archive_after_ns=2 * HOUR_NS,
    auto_reorganize=False,
)


async def purge(catalog: Catalog, ns: int, *, limit: int = 7) -> list[int]:
    """Purge until nothing is left; return how many rows each call removed."""
    removed = []
    while gone := await catalog.purge_namespace(ns, limit=limit):
        removed.append(gone)
    return removed


async def test_settings_come_back_as_they_were_given_after_a_restart(reopen: Reopen) -> None:
    catalog = await reopen()
    made = await catalog.create_namespace("robot", support.PIN, EVERYTHING, now_ns=NOW)
    assert (made.settings, made.create_time_ns, made.update_time_ns) == (EVERYTHING, NOW, NOW)
    assert (made.embedder, made.deleting, made.revision) == (support.PIN, False, await catalog.revision())
    catalog = await reopen()
    assert await catalog.get_namespace("robot") == made
    assert list(await catalog.list_namespaces()) == [made]


async def test_a_namespace_that_came_by_itself_has_no_settings(catalog: Catalog) -> None:
    made = await support.namespace(catalog)
    assert (made.settings, made.revision, made.deleting) == (NamespaceSettings(), 0, False)


async def test_a_name_is_taken_once(catalog: Catalog) -> None:
    made = await support.namespace(catalog)
    with pytest.raises(AlreadyExists):
        await catalog.create_namespace("robot", support.PIN, EVERYTHING, now_ns=NOW)
    assert await catalog.get_namespace("robot") == made


async def test_settings_are_replaced_whole_under_a_new_etag(catalog: Catalog) -> None:
    made = await catalog.create_namespace("robot", support.PIN, EVERYTHING, now_ns=NOW)
    only = NamespaceSettings(purpose="something else", auto_reorganize=True)
    changed = await catalog.update_namespace(made.ns, only, etag=str(made.revision), now_ns=NOW + 1)
    assert (changed.settings, changed.update_time_ns) == (only, NOW + 1)
    assert changed.revision > made.revision
    with pytest.raises(EtagMismatch) as refused:
        await catalog.update_namespace(made.ns, EVERYTHING, etag=str(made.revision), now_ns=NOW)
    assert refused.value.current == str(changed.revision)
    assert await catalog.update_namespace(made.ns, only, etag="", now_ns=NOW + 2) == changed


async def test_settings_of_a_newer_release_survive_an_update(reopen: Reopen, database_file: Path) -> None:
    catalog = await reopen()
    made = await catalog.create_namespace("robot", support.PIN, EVERYTHING, now_ns=NOW)
    newer = json.dumps({"purpose": "x", "routing_unit": 99, "mood": {"calm": True}})
    await catalog.close()
    with closing(sqlite3.connect(database_file)) as connection, connection:
        connection.execute("UPDATE namespaces SET settings = ?", (newer,))
    catalog = await reopen()
    assert (await catalog.get_namespace("robot")).settings == NamespaceSettings(purpose="x")
    await catalog.update_namespace(made.ns, NamespaceSettings(archive_after_ns=5), etag="", now_ns=NOW)
    with closing(sqlite3.connect(database_file)) as connection:
        (text,) = connection.execute("SELECT settings FROM namespaces").fetchone()
    assert json.loads(text) == {"mood": {"calm": True}, "archive_after_ns": 5}


async def test_an_update_of_nobody_is_refused(catalog: Catalog) -> None:
    with pytest.raises(NotFound):
        await catalog.update_namespace(77, EVERYTHING, etag="", now_ns=NOW)
    with pytest.raises(NotFound):
        await catalog.mark_deleting(77, now_ns=NOW)
    assert await catalog.purge_namespace(77, limit=5) == 0


WRITES: dict[str, Callable[[Catalog, Namespace], Awaitable[object]]] = {
    "append": lambda c, n: c.append(n.ns, [NewMemory(text="x")], first_seq=1, stream=None, now_ns=NOW),
    "create": lambda c, n: c.create(n.ns, NewMemory(text="x"), request_id="", now_ns=NOW),
    "retried create": lambda c, n: c.create(n.ns, NewMemory(text="once"), request_id="r", now_ns=NOW),
    "open stream": lambda c, n: c.open_stream(n.ns, "s"),
    "plan": lambda c, n: c.apply_plan(n.ns, PlacementPlan(clusters=[support.cluster(5, count=0)]), now_ns=NOW),
    "evolve": lambda c, n: c.evolve(n.ns, [Evolution(1, 1, 1, context="x")], now_ns=NOW),
    "clusters": lambda c, n: c.put_clusters(n.ns, [support.cluster(5, count=0)]),
    "edit": lambda c, n: c.edit_clusters(
        n.ns, PlacementPlan(clusters=[support.cluster(5, count=0)]), answer=None, now_ns=NOW
    ),
    "update": lambda c, n: c.update(
        n.ns, "m-0", NewMemory(text="x"), fields=frozenset({"text"}), lexical=None, etag="", now_ns=NOW
    ),
    "delete": lambda c, n: c.delete(n.ns, "m-0", etag="", now_ns=NOW),
    "delete matching": lambda c, n: c.delete_matching(n.ns, And(()), through_key=99, limit=9, now_ns=NOW),
    "delete expired": lambda c, n: c.delete_expired(n.ns, now_ns=NOW, limit=9),
    "settings": lambda c, n: c.update_namespace(n.ns, EVERYTHING, etag="", now_ns=NOW),
    "ensure": lambda c, n: c.ensure_namespace(n.name, support.PIN, create=True),
}


@pytest.mark.parametrize("what", WRITES)
@pytest.mark.parametrize("purged", [False, True], ids=["going", "gone"])
async def test_no_write_reaches_a_namespace_that_goes_or_is_gone(catalog: Catalog, what: str, purged: bool) -> None:
    namespace = await support.namespace(catalog)
    await support.organized(catalog, namespace.ns)
    await catalog.create(namespace.ns, NewMemory(text="once"), request_id="r", now_ns=NOW)
    marked = await catalog.mark_deleting(namespace.ns, now_ns=NOW)
    if purged:
        await purge(catalog, namespace.ns, limit=1_000)
        if what == "ensure":
            assert (await WRITES[what](catalog, namespace)) != namespace
            return
    before = await catalog.revision()
    with pytest.raises(NamespaceDeleted):
        await WRITES[what](catalog, namespace)
    assert await catalog.revision() == before
    if not purged:
        assert await catalog.get_namespace(namespace.name) == marked


async def test_a_namespace_that_goes_can_be_read_and_marked_again(catalog: Catalog) -> None:
    namespace = await support.namespace(catalog)
    await support.store_keys(catalog, namespace.ns, 2)
    marked = await catalog.mark_deleting(namespace.ns, now_ns=NOW)
    assert marked.deleting
    assert marked.revision > namespace.revision
    assert await catalog.mark_deleting(namespace.ns, now_ns=NOW + 5) == marked
    assert await catalog.ensure_namespace("robot", support.PIN, create=False) == marked
    assert (await catalog.memory(namespace.ns, "m-0")).text == "note 0"
    with pytest.raises(AlreadyExists):
        await catalog.create_namespace("robot", support.PIN, EVERYTHING, now_ns=NOW)


async def test_only_a_marked_namespace_is_purged(catalog: Catalog, ns: int) -> None:
    await support.store_keys(catalog, ns, 2)
    with pytest.raises(ValueError, match="not marked"):
        await catalog.purge_namespace(ns, limit=5)
    assert (await catalog.stats(ns)).created == 2


async def test_a_purged_namespace_is_gone_and_its_neighbour_untouched(
    catalog: Catalog, database_file: Path
) -> None:
    mine, other = await support.namespace(catalog, "mine"), await support.namespace(catalog, "other")
    for namespace in (mine, other):
        keys = await support.organized(catalog, namespace.ns)
        await catalog.open_stream(namespace.ns, "stream")
        await catalog.create(namespace.ns, NewMemory(text="once"), request_id="r", now_ns=NOW)
        await catalog.evolve(namespace.ns, [Evolution(keys[0], 1, keys[1], context="secret")], now_ns=NOW)
        await catalog.record_failure(namespace.ns, keys[:1], error="x", max_attempts=9, not_before_ns=NOW)
    before = await catalog.list_memories(other.ns, where=None, after=0, limit=99)
    await catalog.mark_deleting(mine.ns, now_ns=NOW)
    removed = await purge(catalog, mine.ns, limit=7)
    assert max(removed) <= 7
    assert [n.name for n in await catalog.list_namespaces()] == ["other"]
    with pytest.raises(NotFound):
        await catalog.get_namespace("mine")
    assert await catalog.list_memories(other.ns, where=None, after=0, limit=99) == before
    assert (await catalog.lexical(mine.ns, ["note"], limit=9)).keys.tolist() == []
    assert (await catalog.lexical(other.ns, ["note"], limit=99)).keys.size == 9
    await support.assert_consistent(catalog, other.ns)
    with closing(sqlite3.connect(database_file)) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        with_ns = [t for t in tables if any(c[1] == "ns" for c in connection.execute(f"PRAGMA table_info({t})"))]
        assert {"memories", "changes", "memory_history", "create_requests", "index_ops"} <= set(with_ns)
        for table in with_ns:
            count = f"SELECT COUNT(*) FROM {table} WHERE ns = ?"  # noqa: S608 (our tables)
            (left,) = connection.execute(count, (mine.ns,)).fetchone()
            assert left == 0, table


async def test_a_purge_goes_on_after_a_restart(reopen: Reopen) -> None:
    catalog = await reopen()
    namespace = await support.namespace(catalog)
    await support.organized(catalog, namespace.ns)
    await catalog.mark_deleting(namespace.ns, now_ns=NOW)
    assert await catalog.purge_namespace(namespace.ns, limit=10) == 10
    catalog = await reopen()
    assert (await catalog.get_namespace("robot")).deleting
    await purge(catalog, namespace.ns)
    assert await catalog.list_namespaces() == []


async def test_a_name_used_again_gets_a_new_number_and_starts_empty(reopen: Reopen) -> None:
    catalog = await reopen()
    first = await support.namespace(catalog)
    keys = await support.organized(catalog, first.ns)
    head = await catalog.index_head(first.ns)
    await catalog.mark_deleting(first.ns, now_ns=NOW)
    await purge(catalog, first.ns, limit=100)
    catalog = await reopen()
    second = await support.namespace(catalog)
    assert second.ns > first.ns
    assert (await catalog.list_memories(second.ns, where=None, after=0, limit=9)).memories == []
    assert await catalog.clusters(second.ns) == []
    again = await support.organized(catalog, second.ns)
    assert min(again) > max(keys)
    assert (await catalog.index_head(second.ns))[0] > head[0]
    await support.assert_consistent(catalog, second.ns)
