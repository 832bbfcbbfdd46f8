"""Numbers of clusters and episodes are never given out twice, also by a server that was started again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from clag_server.catalog.api import EmbedderPin
from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.memory.config import OrganizeConfig
from clag_server.memory.namespace import NamespaceState
from clag_server.types.cluster import PlacementPlan
from tests.memory.builders import DIM, START_NS
from tests.memory.index_double import ScanIndex


@asynccontextmanager
async def loaded(path: Path) -> AsyncIterator[NamespaceState]:
    """A namespace as a server has it after its start."""
    catalog = SqliteCatalog(path / "catalog.db")
    await catalog.open()
    namespace = await catalog.ensure_namespace("robots", EmbedderPin("tiny", "f1", DIM), create=True)
    state = NamespaceState(
        namespace, catalog=catalog, index=ScanIndex(catalog), organize=OrganizeConfig(), now_ns=lambda: START_NS
    )
    await state.load()
    try:
        yield state
    finally:
        await catalog.close()


async def test_a_new_cluster_after_a_restart_has_another_number_than_the_removed_highest(tmp_path: Path) -> None:
    async with loaded(tmp_path) as state:
        kept, highest = state.map.new_cluster(START_NS), state.map.new_cluster(START_NS)
        episode = state.map.new_episode("s", highest.cluster, 0, START_NS)
        await state.commit(PlacementPlan(clusters=[kept, highest], episodes=[episode]))
        await state.commit(PlacementPlan(removed_clusters=[highest.cluster]))
    async with loaded(tmp_path) as state:
        assert set(state.map.clusters) == {kept.cluster}
        assert state.map.new_cluster(START_NS).cluster == highest.cluster + 1
        assert state.map.new_episode("s", kept.cluster, 0, START_NS).episode == episode.episode + 1


async def test_a_map_that_is_loaded_again_after_a_failed_commit_keeps_the_numbers(tmp_path: Path) -> None:
    async with loaded(tmp_path) as state:
        first = state.map.new_cluster(START_NS)
        await state.commit(PlacementPlan(clusters=[first]))
        await state.commit(PlacementPlan(removed_clusters=[first.cluster]))
        await state.load()  # as after a commit that failed; the namespace was read before the first cluster
        assert state.map.new_cluster(START_NS).cluster == first.cluster + 1
