"""Clusters that nobody uses: archived by a sweep after a set time, and found again by a question that fits them.

Without activity is a cluster that got no memory, was not edited, and of which no memory was given in an answer, for
as long as the namespace (else the server) sets. Its memories stay: they are read by their ids and listed as before,
and a question that is very near the cluster searches it all the same. What is routed never joins an archived
cluster; a memory near it founds a new one. A cluster is restored by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
import structlog

from clag_server.catalog.api import Catalog, Namespace
from clag_server.memory.centroids import unit
from clag_server.memory.cluster_map import ClusterMap
from clag_server.memory.config import OrganizeConfig
from clag_server.memory.edit_commit import commit_draft
from clag_server.memory.edit_draft import EditDraft
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.registry import NamespaceRegistry
from clag_server.models.api import ModelUnavailableError
from clag_server.types.cluster import Cluster, ClusterEvent, ClusterNote, ClusterState
from clag_server.types.errors import ClagError
from clag_server.types.memory import Vector

__all__ = ["ArchiveSweep", "hidden_clusters"]

_log = structlog.get_logger(__name__)

_DAY_NS = 24 * 3600 * 10**9
_MOST_DAYS = 36_525.0
"""A hundred years: longer is as good as never, and an infinite number of nanoseconds is no integer."""

_NO_LENGTH = 1e-12
"""Least length that is divided by."""


class ArchiveSweep:
    """Archives idle clusters of all namespaces. `start` once, `stop` at the end.

    Args:
        registry: The namespaces at work.
        catalog: The system of record.
        config: The server's time without activity, and how often to look.
        now_ns: The wall clock.
    """

    def __init__(
        self, registry: NamespaceRegistry, *, catalog: Catalog, config: OrganizeConfig, now_ns: Callable[[], int]
    ) -> None:
        self._registry = registry
        self._catalog = catalog
        self._config = config
        self._now_ns = now_ns
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start sweeping."""
        self._task = asyncio.create_task(self._sweep(), name="archive idle clusters")

    async def stop(self) -> None:
        """Stop sweeping; a transaction that has begun is finished."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def once(self) -> int:
        """Archive what is idle; returns how many clusters."""
        archived = 0
        for namespace in await self._catalog.list_namespaces():
            after_ns = self._after_ns(namespace)
            if namespace.deleting or not after_ns:
                continue
            idle = await self._idle(namespace, self._now_ns() - after_ns)
            if idle:
                archived += await self._archive(namespace, idle, after_ns)
        return archived

    def _after_ns(self, namespace: Namespace) -> int:
        """How long a cluster of the namespace may be idle, in nanoseconds; 0 for ever."""
        own = namespace.settings.archive_after_ns
        return int(min(_MOST_DAYS, self._config.archive_after_days) * _DAY_NS) if own is None else own

    async def _idle(self, namespace: Namespace, before_ns: int) -> list[int]:
        """Return the clusters without activity since a moment; the namespace need not be open for that."""
        found = [one for one in await self._catalog.clusters(namespace.ns) if _may_go(one, before_ns)]
        accesses = await self._catalog.last_access(namespace.ns, [one.cluster for one in found])
        return [one.cluster for one in found if accesses.get(one.cluster, 0) <= before_ns]

    async def _archive(self, namespace: Namespace, idle: Collection[int], after_ns: int) -> int:
        state = (await self._registry.pipeline(namespace.name, create=False, check=False)).state
        async with state.editing():
            draft = EditDraft(state.map, self._now_ns())
            reason = f"without activity for {after_ns / _DAY_NS:.3g} days"
            going = [n for n in sorted(idle) if self._still_idle(state, n, self._now_ns() - after_ns)]
            for number in going:
                old = draft.cluster(number)
                draft.put(replace(old, state=ClusterState.ARCHIVED))
                draft.notes.append(ClusterNote(number, ClusterEvent.ARCHIVED, reason, memories=old.memory_count))
            if going:
                await commit_draft(state, self._catalog, draft, lambda _numbers: None)
                _log.info("idle clusters archived", namespace=namespace.name, count=len(going))
        return len(going)

    def _still_idle(self, state: NamespaceState, number: int, before_ns: int) -> bool:
        """Whether nothing happened since it was found idle; a run of memories that goes on is activity."""
        cluster = state.map.clusters.get(number)
        if cluster is None or not _may_go(cluster, before_ns):
            return False
        return not any(state.map.episodes[e].open for e in state.map.cluster_episodes.get(number, ()))

    async def _sweep(self) -> None:
        while True:
            try:
                await self.once()
            except (ClagError, ModelUnavailableError) as error:
                _log.warning("archiving of idle clusters waits", reason=str(error))
            except Exception:  # noqa: BLE001 - a fault in one sweep must not end all later ones
                _log.exception("archiving of idle clusters failed")
            await asyncio.sleep(self._config.archive_check_s)


def _may_go(cluster: Cluster, before_ns: int) -> bool:
    return (
        cluster.state is ClusterState.ACTIVE
        and not cluster.pinned
        and cluster.memory_count > 0
        and cluster.update_time_ns <= before_ns
    )


def hidden_clusters(cluster_map: ClusterMap, vector: Vector, config: OrganizeConfig, threshold: float) -> set[int]:
    """Return the archived clusters that a question does not search: those that it is not very near to.

    Args:
        cluster_map: The namespace.
        vector: The question (dim,), a unit vector or zeros.
        config: For what all episodes have in common.
        threshold: Least cosine, seen from there, of a cluster that is searched. It must also be at least as near as
            every active cluster: an archived one is for questions that nothing else answers.
    """
    archived = sorted(cluster_map.archived)
    if not archived or not vector.any():
        return set(archived)
    center = cluster_map.episode_center(config.cluster_center_prior)
    nearest = cluster_map.routable.nearest_centred(vector, center, 1)
    least = max(threshold, nearest[0][1]) if nearest else threshold
    query = unit(vector - center)
    sums = np.stack([cluster_map.clusters[number].vector_sum for number in archived])
    rows = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), _NO_LENGTH) - center
    lengths = np.maximum(np.linalg.norm(rows, axis=1), _NO_LENGTH)
    near = (rows @ query) / lengths >= least
    return {number for number, shown in zip(archived, near, strict=True) if not shown}
