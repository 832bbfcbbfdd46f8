"""Ingest streams: watermark, fence, gap, repetition."""

from __future__ import annotations

import pytest

from clag_server.catalog.api import Catalog
from clag_server.types.errors import NotFound, SequenceGap, StreamFenced
from clag_server.types.ingest import Disposition, IngestItem, Rejection, StreamRef
from clag_server.types.memory import NewMemory
from tests.catalog import support
from tests.catalog.conftest import Reopen

NOW = support.NOW


def notes(count: int, *, ids: bool) -> list[IngestItem]:
    return [NewMemory(text=f"note {i}", memory_id=f"m-{i}" if ids else "", session_id="s") for i in range(count)]


async def listed(catalog: Catalog, ns: int) -> int:
    return len((await catalog.list_memories(ns, where=None, after=0, limit=10_000)).memories)


async def test_a_stream_resumes_after_its_last_durable_item(reopen: Reopen) -> None:
    catalog = await reopen()
    ns = (await support.namespace(catalog)).ns
    first = await catalog.open_stream(ns, "s")
    assert first.next_seq == 1
    await catalog.append(ns, notes(5, ids=False), first_seq=1, stream=first.ref, now_ns=NOW)
    catalog = await reopen()
    resumed = await catalog.open_stream(ns, "s")
    assert (resumed.next_seq, resumed.created) == (6, 5)
    assert resumed.ref.epoch > first.ref.epoch


async def test_a_newer_opener_fences_the_older_one(catalog: Catalog, ns: int) -> None:
    old = (await catalog.open_stream(ns, "s")).ref
    new = (await catalog.open_stream(ns, "s")).ref
    with pytest.raises(StreamFenced):
        await catalog.append(ns, notes(1, ids=True), first_seq=1, stream=old, now_ns=NOW)
    with pytest.raises(StreamFenced):
        await catalog.finish_stream(ns, old, last_seq=0)
    assert await listed(catalog, ns) == 0
    await catalog.append(ns, notes(1, ids=True), first_seq=1, stream=new, now_ns=NOW)
    assert await listed(catalog, ns) == 1


async def test_a_gap_is_refused_with_the_number_that_is_expected(catalog: Catalog, ns: int) -> None:
    ref = (await catalog.open_stream(ns, "s")).ref
    await catalog.append(ns, notes(3, ids=True), first_seq=1, stream=ref, now_ns=NOW)
    with pytest.raises(SequenceGap) as refused:
        await catalog.append(ns, notes(1, ids=False), first_seq=5, stream=ref, now_ns=NOW)
    assert (refused.value.expected, refused.value.got) == (4, 5)
    assert await listed(catalog, ns) == 3


async def test_a_stream_that_was_never_opened_takes_nothing(catalog: Catalog, ns: int) -> None:
    with pytest.raises(NotFound):
        await catalog.append(ns, notes(1, ids=True), first_seq=1, stream=StreamRef("s", 1), now_ns=NOW)
    with pytest.raises(NotFound):
        await catalog.open_stream(ns + 1, "s")


async def test_items_below_the_watermark_are_not_stored_again(catalog: Catalog, ns: int) -> None:
    ref = (await catalog.open_stream(ns, "s")).ref
    items = notes(6, ids=True)
    await catalog.append(ns, items[:4], first_seq=1, stream=ref, now_ns=NOW)
    result = await catalog.append(ns, items[2:], first_seq=3, stream=ref, now_ns=NOW)
    assert [(item.seq, item.disposition) for item in result.items] == [
        (3, Disposition.DUPLICATE),
        (4, Disposition.DUPLICATE),
        (5, Disposition.CREATED),
        (6, Disposition.CREATED),
    ]
    assert await listed(catalog, ns) == 6


@pytest.mark.parametrize("ids", [True, False])
async def test_583_items_sent_ten_times_by_sequence_are_583_memories(catalog: Catalog, ns: int, ids: bool) -> None:
    items = notes(583, ids=ids)
    for _ in range(10):
        ref = (await catalog.open_stream(ns, "s")).ref
        for start in range(0, len(items), 64):
            await catalog.append(ns, items[start : start + 64], first_seq=start + 1, stream=ref, now_ns=NOW)
    assert await listed(catalog, ns) == 583
    final = await catalog.finish_stream(ns, ref, last_seq=583)
    assert (final.created, final.duplicates, final.rejected) == (583, 0, 0)


async def test_583_items_sent_ten_times_by_id_are_583_memories_and_the_rest_duplicates(
    catalog: Catalog, ns: int
) -> None:
    items = notes(583, ids=True)
    kinds: list[Disposition] = []
    keys: set[int | None] = set()
    for _ in range(10):
        for start in range(0, len(items), 100):
            result = await catalog.append(ns, items[start : start + 100], first_seq=1, stream=None, now_ns=NOW)
            kinds += [item.disposition for item in result.items]
            keys |= {item.key for item in result.items}
    assert kinds == [Disposition.CREATED] * 583 + [Disposition.DUPLICATE] * 583 * 9
    assert len(keys) == 583
    assert await listed(catalog, ns) == 583
    stats = await catalog.stats(ns)
    assert (stats.created, stats.duplicates, stats.rejected) == (583, 5247, 0)


async def test_an_id_twice_in_one_batch_is_one_memory(catalog: Catalog, ns: int) -> None:
    items = [NewMemory(text="first", memory_id="x"), NewMemory(text="second", memory_id="x")]
    first, second = await support.store(catalog, ns, items)
    assert (first.disposition, second.disposition) == (Disposition.CREATED, Disposition.DUPLICATE)
    assert first.key == second.key
    assert (await catalog.memory(ns, "x")).text == "first"


async def test_a_rejected_item_takes_its_sequence_number_and_the_stream_goes_on(catalog: Catalog, ns: int) -> None:
    ref = (await catalog.open_stream(ns, "s")).ref
    items: list[IngestItem] = [
        NewMemory(text="good", memory_id="a"),
        Rejection("text", "is empty"),
        NewMemory(text="not finite", memory_id="b", attributes={"x": float("nan")}),
        NewMemory(text="wrong length", memory_id="c", embedding=support.unit(1)[:3]),
        NewMemory(text="good again", memory_id="d"),
    ]
    result = await catalog.append(ns, items, first_seq=1, stream=ref, now_ns=NOW)
    rejected = {item.seq: item.rejection.field for item in result.items if item.rejection is not None}
    assert rejected == {2: "text", 3: "attributes", 4: "embedding"}
    final = await catalog.finish_stream(ns, ref, last_seq=5)
    assert (final.next_seq, final.created, final.duplicates, final.rejected) == (6, 2, 0, 3)
    stats = await catalog.stats(ns)
    assert (stats.created, stats.duplicates, stats.rejected) == (2, 0, 3)


@pytest.mark.parametrize("last_seq", [2, 4])
async def test_a_stream_that_ends_elsewhere_is_not_finished(catalog: Catalog, ns: int, last_seq: int) -> None:
    ref = (await catalog.open_stream(ns, "s")).ref
    await catalog.append(ns, notes(3, ids=True), first_seq=1, stream=ref, now_ns=NOW)
    with pytest.raises(SequenceGap):
        await catalog.finish_stream(ns, ref, last_seq=last_seq)
