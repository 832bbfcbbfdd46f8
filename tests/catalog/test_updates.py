"""A client's update changes what it names, keeps what was, and leaves a memory in its place where it can."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clag_server.catalog.api import Catalog, Evolution
from clag_server.catalog.api_clusters import EditAnswer
from clag_server.catalog.api_edits import Updated
from clag_server.types.change import HistoryCause
from clag_server.types.cluster import PlacementPlan
from clag_server.types.errors import EtagMismatch, InvalidField, NotFound
from clag_server.types.memory import (
    AnnotationSource,
    Link,
    LinkKind,
    MemoryKind,
    MemoryState,
    NewMemory,
)
from tests.catalog import support
from tests.catalog.consistency import assert_file_consistent

NOW = support.NOW


async def update(
    catalog: Catalog, ns: int, after: NewMemory, *fields: str, lexical: str | None = None, etag: str = ""
) -> Updated:
    """Update the memory m-0."""
    return await catalog.update(
        ns, "m-0", after, fields=frozenset(fields), lexical=lexical, etag=etag, now_ns=NOW + 7
    )


def history(file: Path, key: int) -> list[tuple[HistoryCause, int, Mapping[str, Any]]]:
    """Return (reason, cause, old values) of a memory's history, oldest first."""
    with closing(sqlite3.connect(file)) as connection:
        rows = connection.execute(
            "SELECT reason, cause, old FROM memory_history WHERE key = ? ORDER BY revision", (key,)
        ).fetchall()
    return [(HistoryCause(reason), cause, json.loads(old)) for reason, cause, old in rows]


async def test_new_text_takes_a_memory_out_of_its_place_and_leaves_the_rest_of_it(
    catalog: Catalog, ns: int
) -> None:
    keys = await support.organized(catalog, ns)
    link = Link("m-1", LinkKind.CAUSAL, "because", 0.5)
    annotated = Evolution(
        keys[0], 1, keys[0], context="about n0", keywords=("n0",), add_links=(link,), state=MemoryState.EVOLVED,
        annotated_by=AnnotationSource.SLM,
    )  # fmt: skip
    await catalog.evolve(ns, [annotated], now_ns=NOW)
    before = await catalog.memory(ns, "m-0")
    updated = await update(catalog, ns, NewMemory(text="blue"), "text", lexical="blue")
    assert (updated.replaced, updated.episode, updated.cluster) == (True, 1, 1)
    expected = replace(
        before, text="blue", state=MemoryState.STORED, cluster=None, episode=None, routing=None,
        has_embedding=False, revision=updated.memory.revision, update_time_ns=NOW + 7, links=(),
    )  # fmt: skip
    assert updated.memory == expected == await catalog.memory(ns, "m-0")
    assert before.revision < updated.memory.revision <= updated.revision == await catalog.revision()
    assert (await catalog.lexical(ns, ["n0"], limit=5)).keys.tolist() == []
    assert (await catalog.lexical(ns, ["blue"], limit=5)).keys.tolist() == []
    assert [m.key for m in await catalog.pending(ns, MemoryState.STORED, limit=5, now_ns=NOW)] == [keys[0]]
    await support.assert_consistent(catalog, ns)


async def link_all(catalog: Catalog, ns: int, keys: list[int], kinds: Mapping[int, LinkKind]) -> None:
    """Link m-0 and each of the memories, both ways, by a kind."""
    there = [Link(f"m-{i}", kind, f"near m-{i}", 0.85) for i, kind in kinds.items()]
    changes = [Evolution(keys[0], 1, keys[0], add_links=tuple(there))]
    back = {i: Link("m-0", kind, "near note 0", 0.85) for i, kind in kinds.items()}
    changes += [Evolution(keys[i], 1, keys[0], add_links=(link,)) for i, link in back.items()]
    await catalog.evolve(ns, changes, now_ns=NOW)


async def kinds_of_links(catalog: Catalog, ns: int, count: int) -> dict[str, dict[str, LinkKind]]:
    """Memory id -> id of the other end -> kind; memories without links are left out."""
    found = [await catalog.memory(ns, f"m-{i}") for i in range(count)]
    return {m.memory_id: {link.memory_id: link.kind for link in m.links} for m in found if m.links}


async def test_new_words_take_links_made_from_the_old_ones_away_at_both_ends(
    catalog: Catalog, ns: int, database_file: Path
) -> None:
    keys = await support.organized(catalog, ns)
    kinds = {1: LinkKind.SIMILAR, 2: LinkKind.TEMPORAL, 3: LinkKind.DUPLICATE, 4: LinkKind.CAUSAL}
    await link_all(catalog, ns, keys, kinds)
    between_others = Evolution(keys[1], 1, keys[1], add_links=(Link("m-2", LinkKind.SIMILAR, "near", 0.9),))
    await catalog.evolve(ns, [between_others], now_ns=NOW)
    await update(catalog, ns, NewMemory(text="blue"), "text")
    assert await kinds_of_links(catalog, ns, 6) == {
        "m-1": {"m-2": LinkKind.SIMILAR},
    }
    assert_file_consistent(database_file)
    reason, cause, old = history(database_file, keys[0])[-1]
    assert (reason, cause) == (HistoryCause.CLIENT, keys[0])
    assert [link[:3] for link in json.loads(old["links"])] == [
        ["m-1", LinkKind.SIMILAR, ""], ["m-2", LinkKind.TEMPORAL, ""], ["m-3", LinkKind.DUPLICATE, ""],
        ["m-4", LinkKind.CAUSAL, ""],
    ]  # fmt: skip
    reason, cause, old = history(database_file, keys[2])[-1]
    assert (reason, cause) == (HistoryCause.EVOLUTION, keys[0])
    assert json.loads(old["links"]) == [["m-0", LinkKind.TEMPORAL, "", 0.85]]
    await catalog.delete(ns, "m-0", etag="", now_ns=NOW)
    await catalog.delete(ns, "m-1", etag="", now_ns=NOW)
    assert_file_consistent(database_file)


async def test_a_link_that_follows_from_supersession_lasts_as_long_as_that(
    catalog: Catalog, ns: int, database_file: Path
) -> None:
    keys = await support.organized(catalog, ns)
    await update(catalog, ns, NewMemory(text="", supersedes=("m-1", "m-2")), "supersedes")
    await catalog.update(
        ns, "m-3", NewMemory(text="", supersedes=("m-0",)), fields=frozenset({"supersedes"}), lexical=None, etag="",
        now_ns=NOW,
    )  # fmt: skip
    await link_all(catalog, ns, keys, dict.fromkeys(range(1, 5), LinkKind.REFINES))
    await update(catalog, ns, NewMemory(text="blue"), "text")
    following = {f"m-{i}": LinkKind.REFINES for i in (1, 2, 3)}
    back = {memory_id: {"m-0": kind} for memory_id, kind in following.items()}
    assert await kinds_of_links(catalog, ns, 6) == {"m-0": following, **back}
    await update(catalog, ns, NewMemory(text="", supersedes=("m-2",)), "supersedes")
    del following["m-1"], back["m-1"]
    assert await kinds_of_links(catalog, ns, 6) == {"m-0": following, **back}
    assert_file_consistent(database_file)


async def test_an_update_that_leaves_a_memory_in_its_place_keeps_its_links(catalog: Catalog, ns: int) -> None:
    keys = await support.organized(catalog, ns)
    await link_all(catalog, ns, keys, {1: LinkKind.SIMILAR})
    before = await kinds_of_links(catalog, ns, 6)
    await update(catalog, ns, NewMemory(text="", tags=("t",), supersedes=("m-2",)), "tags", "supersedes")
    assert await kinds_of_links(catalog, ns, 6) == before


async def test_a_rewritten_memory_is_placed_again_under_its_new_words_only(catalog: Catalog, ns: int) -> None:
    keys = await support.organized(catalog, ns)
    await update(catalog, ns, NewMemory(text="blue"), "text")
    again = support.placement(keys[0], 2, 3, lexical="blue", seed=99)
    await catalog.apply_plan(ns, PlacementPlan(placements=[again]), now_ns=NOW)
    assert (await catalog.lexical(ns, ["n0"], limit=5)).keys.tolist() == []
    assert (await catalog.lexical(ns, ["blue"], limit=5)).keys.tolist() == [keys[0]]
    await support.assert_consistent(catalog, ns)


async def test_a_memory_that_loses_its_place_is_in_no_profile(catalog: Catalog, ns: int) -> None:
    keys = await support.organized(catalog, ns)
    named = [replace(c, representatives=(keys[0], keys[4], keys[8])) for c in await catalog.clusters(ns)]
    await catalog.put_clusters(ns, named)
    await update(catalog, ns, NewMemory(text="blue"), "text")
    home, elsewhere = await catalog.clusters(ns)
    assert home.representatives == elsewhere.representatives == (keys[4], keys[8])
    assert home.profile_stale


@pytest.mark.parametrize(
    ("field", "after"),
    [
        ("kind", NewMemory(text="", kind=MemoryKind.FACT)),
        ("task", NewMemory(text="", task="dock")),
        ("tags", NewMemory(text="", tags=("猫", "b"))),
        ("attributes", NewMemory(text="", attributes={"n": 1.0, "list": ("a",)})),
        ("importance", NewMemory(text="", importance=0.75)),
        ("expire_time_ns", NewMemory(text="", expire_time_ns=NOW + 5)),
    ],
)
async def test_other_fields_change_where_the_memory_is(
    catalog: Catalog, ns: int, field: str, after: NewMemory
) -> None:
    keys = await support.organized(catalog, ns)
    before, head = await catalog.memory(ns, "m-0"), await catalog.index_head(ns)
    updated = await update(catalog, ns, after, field, lexical="other words")
    assert not updated.replaced
    changed = replace(before, revision=updated.revision, update_time_ns=NOW + 7)
    changed = replace(changed, **{field: getattr(after, field)})
    assert updated.memory == changed
    assert await catalog.index_head(ns) == head
    assert (await catalog.lexical(ns, ["n0"], limit=5)).keys.tolist() == []
    assert (await catalog.lexical(ns, ["other"], limit=5)).keys.tolist() == [keys[0]]


async def test_fields_that_are_not_named_stay(catalog: Catalog, ns: int) -> None:
    await support.organized(catalog, ns)
    after = NewMemory(text="other", speaker="eve", tags=("t",), session_id="z", importance=0.5)
    updated = await update(catalog, ns, after, "tags")
    memory = updated.memory
    assert (memory.text, memory.speaker, memory.session_id, memory.importance) == ("note 0", "", "s", None)
    assert memory.tags == ("t",)


async def test_the_same_values_again_change_nothing(catalog: Catalog, ns: int, database_file: Path) -> None:
    keys = await support.organized(catalog, ns)
    before, revision = await catalog.memory(ns, "m-0"), await catalog.revision()
    fields = ("text", "tags", "session_id", "event_time_ns", "expire_time_ns", "embedding", "attributes")
    updated = await update(catalog, ns, NewMemory(text="note 0", session_id="s"), *fields)
    assert updated == Updated(before, revision, replaced=False, episode=1, cluster=1)
    assert await catalog.revision() == revision
    assert history(database_file, keys[0]) == []


async def test_history_keeps_what_a_client_replaced(catalog: Catalog, ns: int, database_file: Path) -> None:
    keys = await support.organized(catalog, ns)
    after = NewMemory(text="blue", kind=MemoryKind.FACT, tags=("t",), event_time_ns=5, embedding=support.unit(50))
    await update(catalog, ns, after, "text", "kind", "tags", "event_time_ns", "embedding", "speaker")
    await update(catalog, ns, NewMemory(text="", expire_time_ns=9), "expire_time_ns")
    first = {"text": "note 0", "kind": 0, "tags": "[]", "event_time": NOW, "embedding": "changed", "cluster": 1}
    assert history(database_file, keys[0]) == [
        (HistoryCause.CLIENT, keys[0], first),
        (HistoryCause.CLIENT, keys[0], {"expire_time": None}),
    ]
    page = await catalog.memory_history(ns, "m-0", before=None, limit=9)
    texts = {c.field: (c.old, c.new) for c in page.entries[1].changes}
    assert texts["text"] == ('"note 0"', '"blue"')
    assert texts["tags"] == ("", '["t"]')
    assert texts["cluster_id"] == ('"c1"', "")


async def test_a_memory_that_changes_its_session_is_the_last_there(catalog: Catalog, ns: int) -> None:
    await support.organized(catalog, ns)
    await support.store(catalog, ns, [NewMemory(text="x", session_id="other")])
    updated = await update(catalog, ns, NewMemory(text="", session_id="other"), "session_id")
    assert updated.replaced
    assert (updated.memory.session_id, updated.memory.session_position) == ("other", 1)
    assert updated.memory.has_embedding  # the words are the same
    (later,) = await support.store(catalog, ns, [NewMemory(text="y", session_id="other", memory_id="later")])
    assert (await catalog.memory(ns, later.memory_id)).session_position == 2
    await support.assert_consistent(catalog, ns)


async def test_a_clients_embedding_stays_until_the_text_changes(catalog: Catalog, ns: int) -> None:
    own = support.unit(70)
    await support.store(catalog, ns, [NewMemory(text="x", memory_id="m-0", embedding=own)])
    updated = await update(catalog, ns, NewMemory(text="x", speaker="eve", event_time_ns=5), "speaker")
    assert (updated.replaced, updated.memory.client_embedding) == (True, True)
    stored = await catalog.memory(ns, "m-0", embedding=True)
    assert stored.embedding is not None
    np.testing.assert_array_equal(stored.embedding, own)
    updated = await update(catalog, ns, NewMemory(text="y"), "text")
    assert (updated.memory.client_embedding, updated.memory.has_embedding) == (False, False)


async def test_an_embedding_among_the_fields_is_the_clients_and_can_be_taken_away(
    catalog: Catalog, ns: int
) -> None:
    await support.organized(catalog, ns)
    given = await update(catalog, ns, NewMemory(text="", embedding=support.unit(80)), "embedding")
    assert (given.replaced, given.memory.client_embedding, given.memory.has_embedding) == (True, True, True)
    taken = await update(catalog, ns, NewMemory(text=""), "embedding")
    assert (taken.replaced, taken.memory.client_embedding, taken.memory.has_embedding) == (True, False, False)


async def test_a_vector_that_comes_with_new_text_is_the_servers(catalog: Catalog, ns: int) -> None:
    await support.organized(catalog, ns)
    updated = await update(catalog, ns, NewMemory(text="blue", embedding=support.unit(90)), "text")
    assert (updated.memory.has_embedding, updated.memory.client_embedding) == (True, False)
    stored = await catalog.memory(ns, "m-0", embedding=True)
    assert stored.embedding is not None
    np.testing.assert_array_equal(stored.embedding, support.unit(90))


async def test_a_quarantined_memory_is_tried_again_when_its_words_change(catalog: Catalog, ns: int) -> None:
    (key,) = await support.store_keys(catalog, ns, 1)
    await catalog.record_failure(ns, [key], error="poison", max_attempts=1, not_before_ns=NOW)
    kept = await update(catalog, ns, NewMemory(text="", tags=("t",)), "tags")
    assert (kept.memory.state, kept.memory.error) == (MemoryState.QUARANTINED, "poison")
    tried = await update(catalog, ns, NewMemory(text="harmless"), "text")
    assert (tried.replaced, tried.memory.state, tried.memory.error) == (True, MemoryState.STORED, "")


async def test_a_failed_attempt_at_the_old_words_is_forgotten(catalog: Catalog, ns: int) -> None:
    (key,) = await support.store_keys(catalog, ns, 1)
    await catalog.record_failure(ns, [key], error="x", max_attempts=9, not_before_ns=NOW + 100)
    await update(catalog, ns, NewMemory(text="new"), "text")
    assert [m.key for m in await catalog.pending(ns, MemoryState.STORED, limit=5, now_ns=NOW)] == [key]


async def test_supersession_follows_the_field(catalog: Catalog, ns: int, database_file: Path) -> None:
    keys = await support.store_keys(catalog, ns, 3)
    await update(catalog, ns, NewMemory(text="", supersedes=("m-1", "nobody", "m-0")), "supersedes")
    assert (await catalog.memory(ns, "m-1")).superseded_by == "m-0"
    assert (await catalog.memory(ns, "m-0")).superseded_by == ""
    updated = await update(catalog, ns, NewMemory(text="", supersedes=("m-2", "nobody")), "supersedes")
    assert updated.memory.supersedes == ("m-2", "nobody")
    assert (await catalog.memory(ns, "m-1")).superseded_by == ""
    assert (await catalog.memory(ns, "m-2")).superseded_by == "m-0"
    assert history(database_file, keys[1])[-1] == (HistoryCause.CLIENT, keys[0], {"superseded_by": "m-0"})


async def test_what_another_memory_superseded_since_is_not_released(catalog: Catalog, ns: int) -> None:
    await support.store_keys(catalog, ns, 2)
    await update(catalog, ns, NewMemory(text="", supersedes=("m-1",)), "supersedes")
    await support.store(catalog, ns, [NewMemory(text="x", memory_id="third", supersedes=("m-1",))])
    await update(catalog, ns, NewMemory(text=""), "supersedes")
    assert (await catalog.memory(ns, "m-1")).superseded_by == "third"


async def test_without_an_event_time_a_memory_happened_when_it_was_stored(catalog: Catalog, ns: int) -> None:
    await support.store(catalog, ns, [NewMemory(text="x", memory_id="m-0", event_time_ns=5, expire_time_ns=6)])
    updated = await update(catalog, ns, NewMemory(text=""), "event_time_ns", "expire_time_ns")
    assert (updated.memory.event_time_ns, updated.memory.expire_time_ns) == (NOW, None)


async def test_an_update_with_an_old_etag_or_of_nobody_changes_nothing(catalog: Catalog, ns: int) -> None:
    await support.organized(catalog, ns)
    before = await catalog.memory(ns, "m-0")
    with pytest.raises(EtagMismatch) as refused:
        await update(catalog, ns, NewMemory(text="blue"), "text", etag="1")
    assert refused.value.current == str(before.revision)
    with pytest.raises(NotFound):
        await catalog.update(
            ns, "nobody", NewMemory(text="x"), fields=frozenset({"text"}), lexical=None, etag="", now_ns=NOW
        )
    assert await catalog.memory(ns, "m-0") == before
    assert (await update(catalog, ns, NewMemory(text="blue"), "text", etag=str(before.revision))).replaced


@pytest.mark.parametrize(
    ("field", "after"),
    [
        ("embedding", NewMemory(text="", embedding=np.ones(3, dtype=np.float32))),
        ("importance", NewMemory(text="", importance=float("nan"))),
        ("attributes", NewMemory(text="", attributes={"x": float("inf")})),
    ],
)
async def test_a_value_that_cannot_be_stored_is_refused_with_the_field(
    catalog: Catalog, ns: int, field: str, after: NewMemory
) -> None:
    await support.store_keys(catalog, ns, 1)
    before = await catalog.memory(ns, "m-0")
    with pytest.raises(InvalidField) as refused:
        await update(catalog, ns, after, field)
    assert refused.value.violations[0].field == f"memory.{field}"
    assert await catalog.memory(ns, "m-0") == before


async def test_the_id_of_a_memory_never_changes(catalog: Catalog, ns: int) -> None:
    await support.store_keys(catalog, ns, 1)
    with pytest.raises(ValueError, match="memory_id"):
        await update(catalog, ns, NewMemory(text="", memory_id="other"), "memory_id")


async def test_the_answer_of_an_update_is_kept_with_it_or_not_at_all(catalog: Catalog, ns: int) -> None:
    await support.organized(catalog, ns)

    def said(updated: Updated) -> EditAnswer:
        return EditAnswer("r-1", b"digest", f"revision {updated.revision}")

    def speechless(updated: Updated) -> EditAnswer:
        raise ValueError(f"no words for {updated.memory.memory_id}")

    async def fetch(answer: Callable[[Updated], EditAnswer]) -> Updated:
        after, fields = NewMemory(text="", task="fetch"), frozenset({"task"})
        return await catalog.update(
            ns, "m-0", after, fields=fields, lexical=None, etag="", now_ns=NOW + 9, answer=answer
        )

    with pytest.raises(ValueError, match="no words"):
        await fetch(speechless)
    assert (await catalog.memory(ns, "m-0")).task == ""
    assert await catalog.edit_answer(ns, "r-1", b"digest") is None
    updated = await fetch(said)
    assert await catalog.edit_answer(ns, "r-1", b"digest") == f"revision {updated.revision}"
