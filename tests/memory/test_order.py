"""Neighbours in time count where the order of arrival says something, and not where it is random."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from clag_server.catalog.api import Catalog
from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.memory.config import RetrieveConfig
from clag_server.memory.order import OrderSignal, told_by_order, weighed_by_order
from clag_server.types.cluster import PlacementPlan
from tests.catalog import support

DIM = support.DIM


def topics(count: int, each: int) -> NDArray[np.float32]:
    """Unit vectors (count * each, DIM): `each` of one topic after the other."""
    random = np.random.default_rng(7)
    found = random.normal(size=(count, 1, DIM)) + 0.7 * random.normal(size=(count, each, DIM))
    rows = found.reshape(-1, DIM)
    units: NDArray[np.float32] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return units


def test_topics_one_after_the_other_are_told_and_the_same_in_random_order_are_not() -> None:
    rows = topics(60, 8)
    mixed = np.random.default_rng(1).permutation(rows)
    assert told_by_order(rows[:-1], rows[1:]) == 1.0
    assert told_by_order(mixed[:-1], mixed[1:]) < 0.3
    some = np.concatenate([rows[:40], mixed[:440]])
    assert told_by_order(some[:-1], some[1:]) < told_by_order(rows[:-1], rows[1:])


def test_too_few_pairs_tell_nothing_and_the_order_is_believed() -> None:
    rows = np.random.default_rng(1).permutation(topics(6, 8))
    assert told_by_order(rows[:-1], rows[1:]) == 1.0
    assert told_by_order(rows[:0], rows[:0]) == 1.0


def test_weights_of_neighbours_shrink_with_what_the_order_says() -> None:
    config = RetrieveConfig(neighbour_weight=0.2, episode_weight=0.8)
    half = weighed_by_order(config, 0.5)
    assert (half.neighbour_weight, half.episode_weight, half.dense_weight) == (0.1, 0.4, config.dense_weight)
    assert weighed_by_order(config, 1.0) is config


class Counted(SqliteCatalog):
    """A catalog that counts how often it is sampled."""

    sampled = 0

    async def successors(
        self, ns: int, *, runs: int, length: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        self.sampled += 1
        return await super().successors(ns, runs=runs, length=length)


async def placed(catalog: Catalog, ns: int, rows: NDArray[np.float32]) -> None:
    keys = await support.store_keys(catalog, ns, len(rows))
    plan = PlacementPlan(
        clusters=[support.cluster(1, count=len(keys))],
        episodes=[support.episode(1, 1, list(rows), is_open=True)],
        placements=[replace(support.placement(k, 1, 1), embedding=row) for k, row in zip(keys, rows, strict=True)],
    )
    await catalog.apply_plan(ns, plan, now_ns=support.NOW)


@pytest.mark.parametrize("shuffled", [False, True])
async def test_the_order_is_measured_in_the_catalog_and_again_after_growth(
    tmp_path: Path, *, shuffled: bool
) -> None:
    catalog = Counted(tmp_path / "catalog.db")
    await catalog.open()
    try:
        ns = (await support.namespace(catalog)).ns
        signal = OrderSignal(catalog, ns)
        assert await signal.share(0) == 1.0
        rows = topics(40, 8)
        rows = np.random.default_rng(3).permutation(rows) if shuffled else rows
        await placed(catalog, ns, rows)
        before, after = await catalog.successors(ns, runs=24, length=24)
        assert before.shape == after.shape == (319, DIM)
        np.testing.assert_array_equal(before[1:], after[:-1])
        catalog.sampled = 0
        share = await signal.share(320)
        assert share < 0.3 if shuffled else share == 1.0
        assert [await signal.share(count) for count in (320, 400, 479)] == [share] * 3
        assert catalog.sampled == 1
        await signal.share(481)
        await signal.share(300)
        assert catalog.sampled == 3
    finally:
        await catalog.close()
