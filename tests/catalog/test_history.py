"""The history of a memory: what each change replaced and gave, when, caused by which memory, newest first."""

from __future__ import annotations

import json

import pytest

from clag_server.catalog.api import Catalog, Evolution
from clag_server.types.change import FieldChange, HistoryCause, HistoryEntry
from clag_server.types.cluster import Move, PlacementPlan
from clag_server.types.errors import NotFound
from clag_server.types.memory import AnnotationSource, Link, LinkKind, MemoryState, NewMemory
from tests.catalog import support
from tests.catalog.test_changes import all_changes, home, organized

NOW = support.NOW


async def whole_history(catalog: Catalog, ns: int, memory_id: str, *, limit: int = 100) -> list[HistoryEntry]:
    """Read all pages of a memory's history."""
    entries: list[HistoryEntry] = []
    before: int | None = None
    while True:
        page = await catalog.memory_history(ns, memory_id, before=before, limit=limit)
        assert len(page.entries) <= limit
        entries += page.entries
        if page.next_before is None:
            return entries
        before = page.next_before


def fields(entry: HistoryEntry) -> dict[str, tuple[str, str]]:
    """Return (old, new) by field."""
    return {change.field: (change.old, change.new) for change in entry.changes}


async def evolved(catalog: Catalog, ns: int) -> list[int]:
    """Let three memories live through evolution by each other; returns their keys."""
    keys = await organized(catalog, ns, 3)
    first, second, third = keys
    links = (Link("m-1", LinkKind.SAME_SUBJECT, "same crate", 0.5),)
    for step, change in enumerate(
        (
            Evolution(first, 1, first, context="a crate", keywords=("crate",), model="tiny-slm",
                      annotated_by=AnnotationSource.SLM, state=MemoryState.EVOLVED),
            Evolution(first, 1, second, context="a heavy crate", add_links=links),
            Evolution(first, 1, third, evolved_tags=("cargo",)),
            Evolution(first, 1, third, context="a lost crate", confidence=0.5, superseded_by="m-2"),
        )
    ):  # fmt: skip
        await catalog.evolve(ns, [change], now_ns=NOW + 10 + step)
    return keys


async def test_every_change_says_what_it_was_what_it_became_and_who_caused_it(catalog: Catalog, ns: int) -> None:
    await evolved(catalog, ns)
    conflict, tags, linked, annotated, created = await whole_history(catalog, ns, "m-0")
    assert fields(conflict) == {
        "context": ('"a heavy crate"', '"a lost crate"'),
        "confidence": ("1.0", "0.5"),
        "superseded_by": ("", '"m-2"'),
    }
    assert (conflict.cause, conflict.cause_memory_id) == (HistoryCause.CONFLICT, "m-2")
    assert fields(tags) == {"evolved_tags": ("", '["cargo"]')}
    link = {"memory_id": "m-1", "kind": "LINK_KIND_SAME_SUBJECT", "reason": "same crate", "similarity": 0.5}
    assert fields(linked)["context"] == ('"a crate"', '"a heavy crate"')
    assert fields(linked)["links"][0] == ""
    assert json.loads(fields(linked)["links"][1]) == [link]
    assert (linked.cause, linked.cause_memory_id, linked.model) == (HistoryCause.EVOLUTION, "m-1", "")
    assert fields(annotated) == {
        "context": ("", '"a crate"'),
        "keywords": ("", '["crate"]'),
        "annotated_by": ("", '"ANNOTATION_SOURCE_SLM"'),
    }
    assert (annotated.cause_memory_id, annotated.model, annotated.cluster) == ("", "tiny-slm", 1)
    assert [entry.time_ns for entry in (conflict, tags, linked, annotated)] == [
        NOW + 13,
        NOW + 12,
        NOW + 11,
        NOW + 10,
    ]
    assert (created.cause, created.changes, created.time_ns) == (HistoryCause.CLIENT, (), NOW)


async def test_revisions_of_the_history_are_those_of_the_change_log(catalog: Catalog, ns: int) -> None:
    first, *_ = await evolved(catalog, ns)
    logged = {change.revision for change in await all_changes(catalog) if change.key == first}
    revisions = [entry.revision for entry in await whole_history(catalog, ns, "m-0")]
    assert revisions == sorted(revisions, reverse=True)
    assert set(revisions) <= logged
    assert revisions[-1] == min(logged)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
async def test_pages_of_any_size_tell_the_same_history(catalog: Catalog, ns: int, limit: int) -> None:
    await evolved(catalog, ns)
    whole = await whole_history(catalog, ns, "m-0")
    assert len(whole) == 5
    assert await whole_history(catalog, ns, "m-0", limit=limit) == whole


async def test_a_move_says_from_which_cluster_to_which(catalog: Catalog, ns: int) -> None:
    keys = await organized(catalog, ns, 2)
    for number, cause in ((2, HistoryCause.ROUTING), (3, HistoryCause.REORGANIZATION)):
        plan = PlacementPlan(clusters=[home(number, keys)], moves=[Move(1, number, support.routing(), cause)])
        await catalog.apply_plan(ns, plan, now_ns=NOW + number)
    second, first, _ = await whole_history(catalog, ns, "m-1")
    assert fields(second) == {"cluster_id": ('"c2"', '"c3"')}
    assert fields(first) == {"cluster_id": ('"c1"', '"c2"')}
    assert (first.cause, second.cause) == (HistoryCause.ROUTING, HistoryCause.REORGANIZATION)
    assert second.cluster == 3


async def test_an_update_by_a_client_is_told_in_the_words_of_the_contract(catalog: Catalog, ns: int) -> None:
    await organized(catalog, ns, 1)
    after = NewMemory(
        text="a red crate",
        tags=("dock",),
        attributes={"slot": 7},
        event_time_ns=NOW + 1_500_000_000,
        importance=0.5,
    )
    changed = frozenset({"text", "tags", "attributes", "event_time_ns", "importance"})
    await catalog.update(ns, "m-0", after, fields=changed, lexical=None, etag="", now_ns=NOW + 9)
    updated, created = await whole_history(catalog, ns, "m-0")
    assert fields(updated) == {
        "text": ('"note 0"', '"a red crate"'),
        "tags": ("", '["dock"]'),
        "attributes": ("", '{"slot":7}'),
        "event_time": ('"2023-11-14T22:13:20Z"', '"2023-11-14T22:13:21.5Z"'),
        "importance": ("", "0.5"),
        "cluster_id": ('"c1"', ""),
    }
    assert (updated.cause, updated.cause_memory_id, updated.time_ns) == (HistoryCause.CLIENT, "", NOW + 9)
    assert created.cause is HistoryCause.CLIENT


async def test_a_new_embedding_is_history_without_its_numbers(catalog: Catalog, ns: int) -> None:
    await organized(catalog, ns, 1)
    after = NewMemory(text="note 0", embedding=support.unit(99))
    await catalog.update(ns, "m-0", after, fields=frozenset({"embedding"}), lexical=None, etag="", now_ns=NOW + 9)
    updated, _ = await whole_history(catalog, ns, "m-0")
    assert FieldChange("embedding", "", "") in updated.changes


async def test_a_cause_that_was_deleted_is_not_named_any_more(catalog: Catalog, ns: int) -> None:
    await evolved(catalog, ns)
    await catalog.delete(ns, "m-1", etag="", now_ns=NOW + 30)
    unlinked, *_, linked, _, _ = await whole_history(catalog, ns, "m-0")
    assert (unlinked.cause, unlinked.cause_memory_id) == (HistoryCause.DELETION, "")
    assert linked.cause_memory_id == ""
    assert "same crate" not in str(await whole_history(catalog, ns, "m-0"))


async def test_a_memory_that_nothing_happened_to_has_its_creation_alone(catalog: Catalog, ns: int) -> None:
    await support.store_keys(catalog, ns, 5)
    revisions = {change.memory_id: change.revision for change in await all_changes(catalog)}
    for memory_id, revision in revisions.items():
        assert await whole_history(catalog, ns, memory_id) == [
            HistoryEntry(revision, HistoryCause.CLIENT, "", NOW, ())
        ]


async def test_a_creation_that_the_log_has_forgotten_is_still_told(catalog: Catalog, ns: int) -> None:
    await evolved(catalog, ns)
    await catalog.compact_changes(before_ns=NOW + 999, keep=0, limit=999)
    created = (await whole_history(catalog, ns, "m-0"))[-1]
    assert created == HistoryEntry(0, HistoryCause.CLIENT, "", NOW, ())


async def test_histories_are_of_one_memory_in_one_namespace(catalog: Catalog, ns: int) -> None:
    await evolved(catalog, ns)
    other = (await support.namespace(catalog, "other")).ns
    await support.store_keys(catalog, other, 1)
    assert len(await whole_history(catalog, other, "m-0")) == 1
    with pytest.raises(NotFound):
        await catalog.memory_history(other, "m-2", before=None, limit=10)
    with pytest.raises(NotFound):
        await catalog.memory_history(ns, "nobody", before=None, limit=10)
