"""The episodes and clusters of one namespace as the domain sees them, mirrored from the catalog.

The domain is the only writer of placements. A change is computed on this map, collected as a `PlacementPlan`, and
committed; when the commit fails the map is loaded again from the catalog, so the two never part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from clag_server.memory.centroids import CentroidTable, rows_of_one, unit
from clag_server.types.cluster import Cluster, ClusterField, ClusterState, Episode
from clag_server.types.memory import Matrix, Vector


class ClusterMap:
    """Episodes by number, clusters by number, their centroids, and which episode each session has open.

    New ones are numbered from `next_episode` and `next_cluster` on: the catalog knows what was removed since.
    """

    def __init__(
        self,
        dim: int,
        episodes: Iterable[Episode],
        clusters: Iterable[Cluster],
        *,
        next_episode: int = 1,
        next_cluster: int = 1,
    ) -> None:
        self.dim = dim
        self.episodes: dict[int, Episode] = {}
        self.clusters: dict[int, Cluster] = {}
        self.episode_centroids = CentroidTable(dim)
        self.routable = CentroidTable(dim)
        """Centroids of the active clusters that hold a closed episode: the candidates of routing."""
        self.archived: set[int] = set()
        """Clusters that are out of default retrieval."""
        self.provisional: set[int] = set()
        """Clusters without a closed episode: no candidates of routing."""
        self.undecided: set[int] = set()
        """Closed episodes whose routing awaits the SLM; for certain the catalog knows, with the decisions."""
        self.memory_count = 0
        """Embedded memories of the namespace."""
        self._memory_sum = np.zeros(dim, dtype=np.float32)
        self._episode_sum = np.zeros(dim, dtype=np.float32)
        self._closed_episodes = 0
        self.open_episodes: dict[str, int] = {}
        self.cluster_episodes: dict[int, set[int]] = {}
        self._session_episodes: dict[str, set[int]] = {}
        self._last_positions: dict[str, int] = {}
        self._next_episode = next_episode
        self._next_cluster = next_cluster
        self._fill_clusters(list(clusters))
        self._fill_episodes(list(episodes))

    @property
    def next_numbers(self) -> tuple[int, int]:
        """Numbers of the next new cluster and episode."""
        return self._next_cluster, self._next_episode

    def new_episode(self, session_id: str, cluster: int, position: int, time_ns: int) -> Episode:
        """Open an episode of a session in a cluster, without members yet."""
        episode = Episode(
            episode=self._next_episode,
            session_id=session_id,
            cluster=cluster,
            vector_sum=np.zeros(self.dim, dtype=np.float32),
            memory_count=0,
            first_position=position,
            last_position=position,
            open=True,
            last_time_ns=time_ns,
        )
        self.put_episode(episode)
        return episode

    def new_cluster(self, now_ns: int) -> Cluster:
        """Found an empty cluster."""
        cluster = new_cluster(self._next_cluster, "", self.dim, now_ns)
        self.put_cluster(cluster)
        return cluster

    def put_episode(self, episode: Episode) -> None:
        """Set an episode as it now is."""
        old = self.episodes.get(episode.episode)
        self._memory_sum += episode.vector_sum
        self.memory_count += episode.memory_count
        if old is not None:
            self._memory_sum -= old.vector_sum
            self.memory_count -= old.memory_count
        if old is not None and old.cluster != episode.cluster:
            self.cluster_episodes.get(old.cluster, set()).discard(episode.episode)
        self.episodes[episode.episode] = episode
        self._join_session(episode)
        self.cluster_episodes.setdefault(episode.cluster, set()).add(episode.episode)
        self.episode_centroids.put(
            episode.episode, episode.vector_sum, group=episode.cluster, size=episode.memory_count
        )
        if episode.open:
            self.open_episodes[episode.session_id] = episode.episode
        elif self.open_episodes.get(episode.session_id) == episode.episode:
            del self.open_episodes[episode.session_id]
        self._next_episode = max(self._next_episode, episode.episode + 1)

    def _fill_episodes(self, episodes: Sequence[Episode]) -> None:
        """Set the episodes of a fresh map: as `put_episode` for each, a hundred times faster for many."""
        sums = self._stacked([episode.vector_sum for episode in episodes])
        self._memory_sum += sums.sum(axis=0)
        self.episode_centroids.fill(
            [episode.episode for episode in episodes],
            sums,
            groups=[episode.cluster for episode in episodes],
            sizes=[episode.memory_count for episode in episodes],
        )
        self.memory_count += sum(episode.memory_count for episode in episodes)
        self.episodes.update((episode.episode, episode) for episode in episodes)
        self.open_episodes.update((episode.session_id, episode.episode) for episode in episodes if episode.open)
        self._next_episode = max(self._next_episode, max(self.episodes, default=0) + 1)
        for episode in episodes:
            self._join_session(episode)
            self.cluster_episodes.setdefault(episode.cluster, set()).add(episode.episode)

    def _fill_clusters(self, clusters: Sequence[Cluster]) -> None:
        """Set the clusters of a fresh map, as `put_cluster` for each."""
        self.clusters.update((cluster.cluster, cluster) for cluster in clusters)
        self.cluster_episodes.update((cluster.cluster, set()) for cluster in clusters)
        self._episode_sum += self._stacked([cluster.vector_sum for cluster in clusters]).sum(axis=0)
        self._closed_episodes += sum(cluster.closed_episodes for cluster in clusters)
        active = {cluster.cluster for cluster in clusters if cluster.state is ClusterState.ACTIVE}
        founded = {cluster.cluster for cluster in clusters if cluster.closed_episodes > 0}
        self.archived.update(self.clusters.keys() - active)
        self.provisional.update(self.clusters.keys() - founded)
        routable = active & founded
        candidates = [cluster for cluster in clusters if cluster.cluster in routable]
        self.routable.fill(
            [cluster.cluster for cluster in candidates],
            self._stacked([cluster.vector_sum for cluster in candidates]),
        )
        self._next_cluster = max(self._next_cluster, max(self.clusters, default=0) + 1)

    def _stacked(self, sums: Sequence[Vector]) -> Matrix:
        """Return sums as the rows of a matrix (n, dim), also where there are none."""
        if not sums:
            return np.zeros((0, self.dim), dtype=np.float32)
        whole = rows_of_one(sums)
        return np.stack(sums) if whole is None else whole

    def _join_session(self, episode: Episode) -> None:
        self._session_episodes.setdefault(episode.session_id, set()).add(episode.episode)
        last = self._last_positions.get(episode.session_id, episode.last_position)
        self._last_positions[episode.session_id] = max(last, episode.last_position)

    def put_cluster(self, cluster: Cluster) -> None:
        """Set a cluster as it now is."""
        self._forget_sum(cluster.cluster)
        self.clusters[cluster.cluster] = cluster
        self._episode_sum += cluster.vector_sum
        self._closed_episodes += cluster.closed_episodes
        self.cluster_episodes.setdefault(cluster.cluster, set())
        _mark(self.archived, cluster.cluster, cluster.state is not ClusterState.ACTIVE)
        _mark(self.provisional, cluster.cluster, cluster.closed_episodes == 0)
        if cluster.closed_episodes > 0 and cluster.state is ClusterState.ACTIVE:
            self.routable.put(cluster.cluster, cluster.vector_sum)
        else:
            self.routable.remove(cluster.cluster)
        self._next_cluster = max(self._next_cluster, cluster.cluster + 1)

    def remove_episode(self, number: int) -> None:
        """Forget an episode; unknown numbers are ignored."""
        episode = self.episodes.pop(number, None)
        self.undecided.discard(number)
        if episode is None:
            return
        self._memory_sum -= episode.vector_sum
        self.memory_count -= episode.memory_count
        self.cluster_episodes.get(episode.cluster, set()).discard(number)
        self.episode_centroids.remove(number)
        of_session = self._session_episodes[episode.session_id]
        of_session.discard(number)
        if not of_session:
            del self._session_episodes[episode.session_id]
            del self._last_positions[episode.session_id]
        if self.open_episodes.get(episode.session_id) == number:
            del self.open_episodes[episode.session_id]

    def runs_around(self, session_id: str, position: int) -> Sequence[Episode]:
        """Return the episodes that a late memory of a session may belong to; none for one that is not late.

        Late is what comes after a later memory of its session was placed: it was rewritten, or failed before. It
        belongs to the run that its position falls into, else to the run before or the one behind.
        """
        if position >= self._last_positions.get(session_id, position):
            return ()
        numbers = sorted(self._session_episodes.get(session_id, ()))
        runs = [self.episodes[n] for n in numbers if self.episodes[n].memory_count]
        inside = [run for run in runs if run.first_position <= position <= run.last_position]
        if inside:
            return inside
        before = [run for run in runs if run.last_position < position]
        behind = [run for run in runs if run.first_position > position]
        neighbours = [max(before, key=lambda run: run.last_position)] if before else []
        return neighbours + ([min(behind, key=lambda run: run.first_position)] if behind else [])

    def remove_cluster(self, number: int) -> None:
        """Forget a cluster that holds no episode; unknown numbers are ignored."""
        self._forget_sum(number)
        self.clusters.pop(number, None)
        self.cluster_episodes.pop(number, None)
        self.archived.discard(number)
        self.provisional.discard(number)
        self.routable.remove(number)

    def _forget_sum(self, number: int) -> None:
        old = self.clusters.get(number)
        if old is not None:
            self._episode_sum -= old.vector_sum
            self._closed_episodes -= old.closed_episodes

    def grow_cluster(self, number: int, memories: int, now_ns: int) -> None:
        """Add `memories` (may be negative) to a cluster's count."""
        # Nothing but the count changes: no sum and no centroid is computed again.
        cluster = self.clusters[number]
        self.clusters[number] = replace(
            cluster, memory_count=cluster.memory_count + memories, update_time_ns=now_ns
        )

    def add_centroid(self, number: int, centroid: Vector, sign: int) -> None:
        """Add (`sign` 1) or take out (-1) a closed episode's unit centroid (dim,) in a cluster's running sum."""
        cluster = self.clusters[number]
        self.put_cluster(
            replace(
                cluster,
                vector_sum=(cluster.vector_sum + sign * centroid).astype(np.float32),
                closed_episodes=cluster.closed_episodes + sign,
            )
        )

    def episode_center(self, prior: float) -> Vector:
        """Return what closed episodes have in common (dim,): their mean centroid.

        With few episodes the mean is one of them rather than what is common, so it is drawn towards zero:
        `prior` episodes of nothing are averaged in.
        """
        center: Vector = (self._episode_sum / (self._closed_episodes + prior)).astype(np.float32)
        return center

    def memory_center(self, prior: float) -> Vector:
        """Return what memories have in common (dim,): their mean, with `prior` memories of nothing averaged in."""
        center: Vector = (self._memory_sum / (self.memory_count + prior)).astype(np.float32)
        return center

    def centroid(self, number: int) -> Vector:
        """Return a cluster's unit centroid (dim,): of its closed episodes, else of its open ones."""
        cluster = self.clusters[number]
        if cluster.closed_episodes > 0:
            return unit(cluster.vector_sum)
        sums = [self.episodes[e].vector_sum for e in self.cluster_episodes.get(number, ())]
        return unit(np.sum(sums, axis=0)) if sums else np.zeros(self.dim, dtype=np.float32)


def _mark(numbers: set[int], number: int, is_in: bool) -> None:
    if is_in:
        numbers.add(number)
    else:
        numbers.discard(number)


def new_cluster(number: int, title: str, dim: int, now_ns: int) -> Cluster:
    """Return a cluster without members; a title is a client's."""
    return Cluster(
        cluster=number,
        title=title,
        summary="",
        tags=(),
        representatives=(),
        vector_sum=np.zeros(dim, dtype=np.float32),
        closed_episodes=0,
        memory_count=0,
        state=ClusterState.ACTIVE,
        pinned=False,
        profile_stale=True,
        profile_count=0,
        create_time_ns=now_ns,
        update_time_ns=now_ns,
        client_fields=frozenset({ClusterField.TITLE}) if title else frozenset(),
    )
