"""Which partition of a collection holds a cluster.

Every cluster has its own partition `c<cluster>` until a collection has as many partitions as it may; clusters that
come after share `s<cluster mod n>`. Names are made from our integers only, since Milvus Lite uses a partition's
name as a directory without checking it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

__all__ = ["PartitionLayout", "SearchScope", "collection_name", "own_partition", "owner_mark"]

_CATALOG_ID = re.compile(r"[0-9a-f]{12,}")
_OWNER_DIGITS = 12


def collection_name(ns: int, owner: str = "") -> str:
    """Return the collection of a namespace; `owner` (see `owner_mark`) keeps catalogs on one server apart."""
    return f"clag_{owner}_{_natural(ns)}" if owner else f"clag_{_natural(ns)}"


def owner_mark(catalog_id: str) -> str:
    """Return what names a catalog in collections: the first digits of its id. Raises ValueError for no such id."""
    if not _CATALOG_ID.fullmatch(catalog_id):
        raise ValueError(f"a catalog is named by at least {_OWNER_DIGITS} hexadecimal digits, got {catalog_id!r}")
    return catalog_id[:_OWNER_DIGITS]


def own_partition(cluster: int) -> str:
    """Return the name of a cluster's own partition."""
    return f"c{_natural(cluster)}"


def _natural(number: int) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"a collection or partition is named by a natural number, got {number!r}")
    return number


@dataclass(frozen=True, slots=True)
class SearchScope:
    """What to search for some clusters: partitions of their own, and shared ones filtered by cluster."""

    own: Sequence[str]
    shared: Sequence[str]
    shared_clusters: Sequence[int]


@dataclass(slots=True)
class PartitionLayout:
    """The partitions that exist, and the clusters that were sent to shared ones.

    `shared` only grows until a rebuild: a cluster's rows must never be in two partitions.
    """

    limit: int
    buckets: int
    known: set[str] = field(default_factory=set)
    shared: set[int] = field(default_factory=set)

    def find(self, cluster: int) -> str:
        """Return the partition that holds the cluster's rows, whether it exists or not."""
        return self._bucket(cluster) if cluster in self.shared else own_partition(cluster)

    def place(self, cluster: int) -> str:
        """Return the partition for a new row, deciding it for a new cluster."""
        own = own_partition(cluster)
        if cluster in self.shared:
            return self._bucket(cluster)
        if own in self.known:
            return own
        owned = sum(1 for name in self.known if name.startswith("c"))
        if owned < self.limit - self.buckets - 1:
            return own
        self.shared.add(cluster)
        return self._bucket(cluster)

    def scope(self, clusters: Iterable[int]) -> SearchScope:
        """Return where rows of these clusters can be; partitions that do not exist are left out.

        Leaving them out matters: Milvus refuses a missing partition, and an empty list means all partitions.
        """
        own: set[str] = set()
        buckets: set[str] = set()
        sharing: set[int] = set()
        for cluster in clusters:
            name = self.find(cluster)
            if name not in self.known:
                continue
            if cluster in self.shared:
                buckets.add(name)
                sharing.add(cluster)
            else:
                own.add(name)
        return SearchScope(sorted(own), sorted(buckets), sorted(sharing))

    def _bucket(self, cluster: int) -> str:
        return f"s{_natural(cluster) % self.buckets}"
