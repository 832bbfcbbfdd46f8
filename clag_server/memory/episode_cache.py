"""Vectors of recently used episodes, kept in memory: stage two then needs no read for a hot episode."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

from clag_server.catalog.api import Catalog, EpisodeMembers
from clag_server.memory.cluster_map import ClusterMap


class EpisodeCache:
    """A least-recently-used cache of `EpisodeMembers` by namespace and episode, bounded in bytes.

    An entry is valid as long as the episode's size and last position are those it was read with, so growth and
    deletion invalidate it without anyone telling.

    Args:
        catalog: Where members are read.
        max_bytes: What the vectors and numbers of all entries may take together.
    """

    def __init__(self, catalog: Catalog, *, max_bytes: int) -> None:
        self._catalog = catalog
        self._max = max_bytes
        self._entries: OrderedDict[tuple[int, int], tuple[tuple[int, int], EpisodeMembers]] = OrderedDict()
        self._size = 0
        self._epochs: dict[int, int] = {}
        """Namespace -> how often it was told to forget: what was read before does not enter the cache after."""

    @property
    def size(self) -> int:
        """Bytes that the entries take."""
        return self._size

    async def members(self, ns: int, cluster_map: ClusterMap, episodes: Sequence[int]) -> EpisodeMembers:
        """Return the members of the episodes, in the order of the episodes, then by position."""
        found: dict[int, EpisodeMembers] = {}
        missing: list[int] = []
        epoch = self._epochs.get(ns, 0)
        stamps: dict[int, tuple[int, int]] = {}
        for number in episodes:
            episode = cluster_map.episodes[number]
            stamps[number] = (episode.memory_count, episode.last_position)
            entry = self._entries.get((ns, number))
            if entry is not None and entry[0] == stamps[number]:
                self._entries.move_to_end((ns, number))
                found[number] = entry[1]
            else:
                missing.append(number)
        if missing:
            loaded = _by_episode(await self._catalog.episode_members(ns, missing))
            for number, members in loaded.items():
                found[number] = members
                # An episode that is being written right now is read again next time.
                if len(members.keys) == stamps[number][0] and self._epochs.get(ns, 0) == epoch:
                    self._put(ns, number, stamps[number], members)
        return concatenate([found[number] for number in episodes if number in found])

    def forget(self, ns: int, episodes: Iterable[int]) -> None:
        """Forget episodes whose members were changed or removed."""
        self._epochs[ns] = self._epochs.get(ns, 0) + 1
        for number in episodes:
            entry = self._entries.pop((ns, number), None)
            if entry is not None:
                self._size -= _bytes(entry[1])

    def drop(self, ns: int) -> None:
        """Forget a namespace."""
        self._epochs[ns] = self._epochs.get(ns, 0) + 1
        for key in [key for key in self._entries if key[0] == ns]:
            self._size -= _bytes(self._entries.pop(key)[1])

    def _put(self, ns: int, number: int, stamp: tuple[int, int], members: EpisodeMembers) -> None:
        old = self._entries.pop((ns, number), None)
        if old is not None:
            self._size -= _bytes(old[1])
        self._entries[(ns, number)] = (stamp, members)
        self._size += _bytes(members)
        while self._size > self._max and self._entries:
            _, (_, evicted) = self._entries.popitem(last=False)
            self._size -= _bytes(evicted)


def concatenate(parts: Sequence[EpisodeMembers]) -> EpisodeMembers:
    """Join members in order; no parts give empty arrays of shape (0,) and (0, 0)."""
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        return EpisodeMembers(none, none, none, np.zeros((0, 0), dtype=np.float32), none.astype(np.object_))
    return EpisodeMembers(
        np.concatenate([p.keys for p in parts]),
        np.concatenate([p.episodes for p in parts]),
        np.concatenate([p.positions for p in parts]),
        np.concatenate([p.vectors for p in parts]),
        np.concatenate([p.speakers for p in parts]),
    )


def _by_episode(members: EpisodeMembers) -> dict[int, EpisodeMembers]:
    result: dict[int, EpisodeMembers] = {}
    for number in np.unique(members.episodes):
        rows = members.episodes == number
        result[int(number)] = EpisodeMembers(
            members.keys[rows],
            members.episodes[rows],
            members.positions[rows],
            members.vectors[rows],
            members.speakers[rows],
        )
    return result


def _bytes(members: EpisodeMembers) -> int:
    arrays = (members.keys, members.episodes, members.positions, members.vectors, members.speakers)
    return sum(array.nbytes for array in arrays)
