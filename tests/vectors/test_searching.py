"""What a search finds while everything runs, from the moment of a commit to long after.

The tests share one index process and keep apart by namespace, as users do.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from clag_server.vectors.index import MilvusIndex
from clag_server.vectors.settings import IndexSettings
from tests.vectors.catalog_double import DIM, MemoryFeed, unit
from tests.vectors.conftest import BACKENDS, server_of
from tests.vectors.helpers import found, partitions, settled, written_rows

pytestmark = pytest.mark.asyncio(loop_scope="module")

Shared = tuple[MemoryFeed, MilvusIndex, int]

_numbers = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BACKENDS, ids=lambda flavor: flavor.value)
async def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[MemoryFeed, MilvusIndex]]:
    feed = MemoryFeed()
    folder: Path = tmp_path_factory.mktemp("index")
    settings = IndexSettings(idle_s=3_600)
    index = MilvusIndex(feed, folder, server=server_of(request, request.param), settings=settings)
    await index.start()
    yield feed, index
    await index.stop()


@pytest.fixture
def shared(running: tuple[MemoryFeed, MilvusIndex]) -> Shared:
    """The catalog, the index that runs on it, and a namespace of the test's own."""
    return *running, next(_numbers)


async def test_a_placement_is_found_right_after_its_commit_and_still_after_it_is_written(
    shared: Shared,
) -> None:
    feed, index, ns = shared
    index.notify(ns, DIM)
    await settled(index, ns)
    placed = feed.put(ns, 7, unit(1))
    index.notify(ns, DIM)
    assert await found(index, ns, [7], unit(1)) == [placed]
    assert index.namespace_status(ns).pending_ops == 1, "it was not found in the overlay"
    await settled(index, ns)
    assert index.namespace_status(ns).pending_ops == 0
    assert feed.unacknowledged(ns) == 0
    assert await found(index, ns, [7], unit(1)) == [placed]
    assert await written_rows(index, ns) == 1


async def test_a_search_is_exact_and_ordered_over_chosen_clusters_whatever_is_written(
    shared: Shared,
) -> None:
    feed, index, ns = shared
    clusters = {feed.put(ns, seed % 5, unit(seed)): seed for seed in range(300)}
    index.notify(ns, DIM)
    await settled(index, ns)
    clusters |= {feed.put(ns, seed % 5, unit(seed)): seed for seed in range(300, 400)}
    index.notify(ns, DIM)
    query = unit(12_345)
    hits = (await index.search(ns, [1, 4, 99], query, limit=20)).hits
    scores = {placed: float(np.dot(unit(seed), query)) for placed, seed in clusters.items() if seed % 5 in (1, 4)}
    expected = sorted(scores, key=lambda placed: -scores[placed])[:20]
    assert [hit.placement_id for hit in hits] == expected
    np.testing.assert_allclose([hit.score for hit in hits], [scores[placed] for placed in expected], atol=1e-5)
    everything = (await index.search(ns, None, query, limit=1_000)).hits
    assert {hit.placement_id for hit in everything} == feed.current_ids(ns)


async def test_a_moved_memory_is_found_once_under_its_new_placement_only(shared: Shared) -> None:
    feed, index, ns = shared
    old = feed.put(ns, 3, unit(1))
    index.notify(ns, DIM)
    await settled(index, ns)
    new = feed.move(ns, old, 4)
    index.notify(ns, DIM)
    for _ in ("pending", "written"):
        assert await found(index, ns, None, unit(1)) == [new]
        assert await found(index, ns, [3], unit(1)) == []
        assert await found(index, ns, [4], unit(1)) == [new]
        await settled(index, ns)
    assert await written_rows(index, ns) == 1


async def test_a_memory_that_moves_twice_before_it_is_written_ends_in_one_place(shared: Shared) -> None:
    feed, index, ns = shared
    last = feed.move(ns, feed.move(ns, feed.put(ns, 1, unit(1)), 2), 1)
    index.notify(ns, DIM)
    await settled(index, ns)
    assert await found(index, ns, None, unit(1)) == [last]
    assert await partitions(index, ns) == {"c1"}


async def test_deleted_memories_leave_the_results_at_once_and_make_room_for_others(shared: Shared) -> None:
    feed, index, ns = shared
    near = [feed.put(ns, 1, unit(1)) for _ in range(30)]
    far = feed.put(ns, 1, unit(2))
    index.notify(ns, DIM)
    await settled(index, ns)
    for placed in near:
        feed.delete(ns, placed)
    index.notify(ns, DIM)
    assert await found(index, ns, [1], unit(1), limit=1) == [far]
    await settled(index, ns)
    assert await found(index, ns, [1], unit(1), limit=1) == [far]
    assert await written_rows(index, ns) == 1


async def test_the_partition_of_an_emptied_cluster_goes_and_comes_back_with_new_rows(shared: Shared) -> None:
    feed, index, ns = shared
    placed = feed.put(ns, 8, unit(1))
    feed.put(ns, 9, unit(2))
    index.notify(ns, DIM)
    await settled(index, ns)
    assert await partitions(index, ns) == {"c8", "c9"}
    feed.delete(ns, placed)
    index.notify(ns, DIM)
    await settled(index, ns)
    assert await partitions(index, ns) == {"c9"}
    assert await found(index, ns, [8], unit(1)) == []
    again = feed.put(ns, 8, unit(1))
    index.notify(ns, DIM)
    await settled(index, ns)
    assert await found(index, ns, [8], unit(1)) == [again]


async def test_namespaces_never_see_each_other_and_one_can_be_dropped_alone(shared: Shared) -> None:
    feed, index, one = shared
    other = int(f"{one}{one}")
    mine = {ns: [feed.put(ns, 5, unit(seed)) for seed in range(10)] for ns in (one, other)}
    for ns in (one, other):
        index.notify(ns, DIM)
        await settled(index, ns)
    for clusters in ([5], None):
        for ns in (one, other):
            assert sorted(await found(index, ns, clusters, unit(0))) == mine[ns]
    await index.drop(one)
    session = index._backend.session
    assert session is not None
    left = await index._backend.read(session.connection.collections)
    assert session.connection._name(one) not in left
    assert session.connection._name(other) in left
    assert sorted(await found(index, other, None, unit(0))) == mine[other]
