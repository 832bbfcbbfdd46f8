"""One of a set of duplicates is shown; age and use count where the settings say so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clag_server.memory.config import RetrieveConfig
from clag_server.memory.decay import weigh_age
from clag_server.memory.duplicates import one_of_each
from clag_server.memory.supersession import Scored
from clag_server.types.ingest import AckLevel
from clag_server.types.memory import Link, LinkKind
from clag_server.types.retrieval import MemoryHits, RetrieveQuery
from tests.memory.builders import DAY_NS, START_NS, memory
from tests.memory.system import NAMESPACE, found, remember, system_on

NOW_NS = START_NS + 1000 * DAY_NS


def scored(key: int, score: float, *, same: tuple[int, ...] = (), age_days: float = 0.0, used: int = 0) -> Scored:
    links = tuple(Link(f"m{other}", LinkKind.DUPLICATE, "says the same") for other in same)
    one = memory(key, time_ns=NOW_NS - int(age_days * DAY_NS))
    last = NOW_NS if used else None
    return Scored(replace(one, links=links, access_count=used, last_access_time_ns=last), score, key)


def test_the_best_of_a_set_of_duplicates_stands_for_all() -> None:
    hits = [scored(1, 0.9, same=(3,)), scored(2, 0.8), scored(3, 0.7, same=(1, 4)), scored(4, 0.6, same=(3,))]
    shown, stands_for = one_of_each(hits)
    assert [hit.memory.key for hit in shown] == [1, 2]
    assert stands_for == {"m1": ("m3", "m4")}


def test_a_link_on_either_side_is_enough() -> None:
    shown, stands_for = one_of_each([scored(1, 0.9), scored(2, 0.8, same=(1,))])
    assert [hit.memory.key for hit in shown] == [1]
    assert stands_for == {"m1": ("m2",)}


def test_a_duplicate_that_is_not_among_the_hits_hides_nothing() -> None:
    shown, stands_for = one_of_each([scored(1, 0.9, same=(7,)), scored(2, 0.8)])
    assert len(shown) == 2
    assert stands_for == {}


async def test_the_same_note_many_times_leaves_room_for_others(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, ["the gate squeaks again today"] * 45, level=AckLevel.DURABLE)
        await remember(system, ["the gate squeaks on its hinge again"], first=200)
        query = RetrieveQuery(NAMESPACE, "the gate squeaks again today", max_memories=2)
        stages = [stage async for stage in system.retrieve(query)]
        (hits,) = [stage.hits for stage in stages if isinstance(stage, MemoryHits)]
        first, second = hits
        assert second.memory.memory_id == "m200"
        assert len(first.duplicates) == 44


async def test_both_sides_of_a_duplicate_are_kept(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, ["the ramp is icy this morning", "the ramp is icy this morning"])
        (hit,) = await found(system, "icy ramp")
        assert {hit.memory.memory_id, *hit.duplicates} == {"m0", "m1"}
        assert (
            len((await system.list_memories("robots", where=None, after=0, limit=9, fresh_revision=0))[0].memories)
            == 2
        )


async def test_the_same_words_of_two_speakers_are_two_memories(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        for n, speaker in enumerate(("Maria", "Bo")):
            await remember(system, ["I locked the gate"], first=n, speaker=speaker)
        assert len(await found(system, "who locked the gate")) == 2


def test_age_counts_for_nothing_by_default() -> None:
    hits = [scored(1, 0.9, age_days=900), scored(2, 0.8)]
    assert [hit.score for hit in weigh_age(hits, RetrieveConfig(), now_ns=NOW_NS)] == [0.9, 0.8]


def test_a_fresh_memory_passes_an_old_one_by_its_weight() -> None:
    config = RetrieveConfig(recency_weight=0.4, half_life_days=30.0)
    old, fresh = scored(1, 0.9, age_days=30), scored(2, 0.8)
    assert [hit.memory.key for hit in weigh_age([old, fresh], config, now_ns=NOW_NS)] == [2, 1]
    assert (old.recency, fresh.recency) == pytest.approx((0.2, 0.4))


def test_a_memory_from_the_future_is_as_fresh_as_one_of_now() -> None:
    config = RetrieveConfig(recency_weight=0.4)
    (hit,) = weigh_age([scored(1, 0.0, age_days=-5)], config, now_ns=NOW_NS)
    assert hit.score == pytest.approx(0.4)


def test_use_counts_with_its_number_and_its_age() -> None:
    config = RetrieveConfig(access_weight=1.0)
    never, once, often = weigh_age(
        [scored(1, 0.0), scored(2, 0.0, used=1), scored(3, 0.0, used=99)], config, now_ns=NOW_NS
    )[::-1]
    assert (never.access, once.access, often.access) == pytest.approx((0.0, 0.5, 0.99))
