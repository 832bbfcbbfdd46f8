"""A thin, typed, blocking wrapper over the Milvus client: collections and partitions named by our integers.

Everything that Milvus Lite and a Milvus server do differently is here. Only integers of ours reach expressions
(the client does not escape strings), rows are always upserted, deletes name their true partition, and every error
is one of two kinds (`vectors.errors`). Call it in an executor. The client library takes 1.7 s to import, so it is
imported by the functions that need it.
"""

from __future__ import annotations

import enum
import importlib
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clag_server.catalog.api import IndexOp
from clag_server.types.memory import Vector
from clag_server.vectors.address import MilvusServer
from clag_server.vectors.api import VectorHit
from clag_server.vectors.client_log import adopt_client_loggers
from clag_server.vectors.errors import BackendAwayError
from clag_server.vectors.partitions import SearchScope, collection_name
from clag_server.vectors.translate import translated

if TYPE_CHECKING:
    from pymilvus import MilvusClient

__all__ = ["MAX_HITS", "CollectionInfo", "Flavor", "MilvusConnection", "preload", "preloaded"]

MAX_HITS = 16_384
"""Most hits of one search, Milvus' own limit."""

_DELETE_IDS = 1_000
_METRIC = "IP"  # vectors are unit vectors: the inner product is the cosine, without normalising again
_STAMP = "clag.stamp"  # a property: Milvus Lite forgets descriptions


def preload() -> None:
    """Import the client library, which takes seconds, in the thread that calls this."""
    importlib.import_module("pymilvus")


def preloaded() -> bool:
    """Return whether the client library is imported."""
    return "pymilvus" in sys.modules


class Flavor(enum.Enum):
    """The embedded store or a server."""

    LITE = "lite"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """What a collection says of itself: dimension of its vectors, and the stamp it was created with."""

    dim: int
    stamp: str


class MilvusConnection:
    """One connection. Safe for several threads; writes to one collection must come from one at a time.

    Args:
        server: Where it leads to.
        flavor: What answers there.
        owner: Part of the names of collections, see `partitions.collection_name`.
        read_timeout_s: Longest search, and longest wait for a connection.
        write_timeout_s: Longest other call.
    """

    def __init__(
        self, server: MilvusServer, flavor: Flavor, *, owner: str, read_timeout_s: float, write_timeout_s: float
    ) -> None:
        self.flavor = flavor
        self._server = server
        self._owner = owner
        self._read_s = read_timeout_s
        self._write_s = write_timeout_s
        self._opened: MilvusClient | None = None

    def connect(self) -> None:
        """Connect and ask for the version; raises BackendAwayError when nothing answers."""
        from pymilvus import MilvusClient

        adopt_client_loggers()
        # It logs every refused call with a traceback; we raise, and the worker logs once.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        server = self._server
        try:
            with translated(f"connect to {server.uri}"):
                self._opened = MilvusClient(
                    uri=server.uri,
                    token=server.token,
                    timeout=self._read_s,
                    # A connection of its own: the shared ones outlive a backend that is gone.
                    dedicated=True,
                    server_pem_path="" if server.ca_file is None else str(server.ca_file),
                )
        except OSError as error:
            raise BackendAwayError(f"cannot read index.ca_file: {error}") from error

    def close(self) -> None:
        """Close; calls in flight end with BackendAwayError."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    # --- collections
    def collections(self) -> list[str]:
        """Return the names of all collections."""
        with translated("list collections"):
            return [str(name) for name in self._client.list_collections(timeout=self._write_s)]

    def describe(self, ns: int) -> CollectionInfo | None:
        """Return what the namespace's collection is, None when there is none."""
        name = self._name(ns)
        # Not by listing: on Lite that opens the collections of all namespaces.
        with translated("describe"):
            if not self._client.has_collection(name, timeout=self._write_s):
                return None
            body = self._client.describe_collection(name, timeout=self._write_s)
        dims = [field["params"]["dim"] for field in body["fields"] if field["name"] == "vector"]
        return CollectionInfo(
            dim=int(dims[0]) if dims else 0, stamp=str(body.get("properties", {}).get(_STAMP, ""))
        )

    def create(self, ns: int, dim: int, stamp: str) -> None:
        """Create the collection with its index and load it."""
        from pymilvus import DataType, MilvusClient

        with translated("create collection"):
            schema = MilvusClient.create_schema(
                auto_id=False, enable_dynamic_field=False, description="placements of one namespace"
            )
            schema.add_field("placement_id", DataType.INT64, is_primary=True)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
            schema.add_field("cluster", DataType.INT64)
            schema.add_field("event_time", DataType.INT64)
            index = MilvusClient.prepare_index_params()
            index.add_index("vector", index_type="FLAT", metric_type=_METRIC)
            self._client.create_collection(
                self._name(ns),
                schema=schema,
                index_params=index,
                properties={_STAMP: stamp},
                timeout=self._write_s,
            )

    def drop(self, ns: int) -> None:
        """Drop the collection if it exists."""
        with translated("drop collection"):
            self._client.drop_collection(self._name(ns), timeout=self._write_s)

    def load(self, ns: int) -> None:
        """Make the collection searchable; on Lite this reads all of it."""
        with translated("load"):
            self._client.load_collection(self._name(ns), timeout=self._write_s)

    def count(self, ns: int, partition: str | None = None) -> int:
        """Return the number of live rows in the collection or one partition."""
        name = self._name(ns)
        with translated("count"):
            if partition is not None and self.flavor is Flavor.LITE:
                # Lite's count(*) ignores the partition unless there is a filter, and then builds every row.
                stats = self._client.get_partition_stats(name, partition, timeout=self._write_s)
                return int(stats["row_count"])
            rows = self._client.query(
                name,
                filter="",
                output_fields=["count(*)"],
                partition_names=[partition] if partition else None,
                consistency_level="Strong",
                timeout=self._write_s,
            )
            return int(rows[0]["count(*)"])

    # --- partitions
    def partitions(self, ns: int) -> set[str]:
        """Return the partitions of the collection, Milvus' own `_default` left out."""
        with translated("list partitions"):
            names = self._client.list_partitions(self._name(ns), timeout=self._write_s)
        return {str(name) for name in names if not str(name).startswith("_")}

    def create_partition(self, ns: int, partition: str) -> None:
        """Create a partition that does not exist."""
        with translated("create partition"):
            self._client.create_partition(self._name(ns), partition, timeout=self._write_s)

    def drop_partition(self, ns: int, partition: str) -> None:
        """Drop a partition with all its rows."""
        name = self._name(ns)
        with translated("drop partition"):
            if self.flavor is Flavor.SERVER:
                # A server refuses to drop what is loaded; Lite does not know partial release.
                self._client.release_partitions(name, [partition], timeout=self._write_s)
            self._client.drop_partition(name, partition, timeout=self._write_s)

    # --- rows
    def upsert(self, ns: int, partition: str, ops: Sequence[IndexOp]) -> None:
        """Write the rows of PUT ops into a partition; writing one again changes nothing."""
        rows = [
            {
                "placement_id": op.placement_id,
                "vector": op.vector,
                "cluster": op.cluster,
                "event_time": op.event_time_ns,
            }
            for op in ops
        ]
        with translated("upsert"):
            # An insert on Lite replaces a row of the same key. Its upsert is that, after it has looked for each key
            # in each file, to take over fields that are not given; ours are always whole.
            write = self._client.insert if self.flavor is Flavor.LITE else self._client.upsert
            write(self._name(ns), rows, partition_name=partition, timeout=self._write_s)

    def delete(self, ns: int, partition: str, placement_ids: Sequence[int]) -> None:
        """Delete rows from the partition that holds them; ids that are not there are ignored."""
        for start in range(0, len(placement_ids), _DELETE_IDS):
            ids = [int(placement_id) for placement_id in placement_ids[start : start + _DELETE_IDS]]
            with translated("delete"):
                self._client.delete(self._name(ns), ids=ids, partition_name=partition, timeout=self._write_s)

    def flush(self, ns: int) -> None:
        """Make what was written durable. A server does that by itself and is slowed by being told."""
        if self.flavor is Flavor.LITE:
            with translated("flush"):
                self._client.flush(self._name(ns), timeout=self._write_s)

    def keys(self, ns: int, partition: str, *, after: int, limit: int) -> tuple[list[int], list[int]]:
        """Return placement ids above `after` of one partition, ascending, and the clusters they say they are in."""
        with translated("read keys"):
            rows = self._client.query(
                self._name(ns),
                filter=f"placement_id > {int(after)}",
                output_fields=["placement_id", "cluster"],
                partition_names=[partition],
                consistency_level="Strong",
                limit=limit,
                iterator="True",  # the smallest ids first, which is not promised otherwise
                timeout=self._write_s,
            )
        found = sorted((int(row["placement_id"]), int(row["cluster"])) for row in rows)
        return [placement_id for placement_id, _ in found], [cluster for _, cluster in found]

    def search(self, ns: int, scope: SearchScope | None, vector: Vector, limit: int) -> list[list[VectorHit]]:
        """Search the scope's partitions (None: the whole collection); one list per search that was needed."""
        if scope is None:
            return [self._search(ns, None, "", vector, limit)]
        lists = []
        if scope.own:
            lists.append(self._search(ns, scope.own, "", vector, limit))
        if scope.shared:
            chosen = ", ".join(str(int(cluster)) for cluster in scope.shared_clusters)
            lists.append(self._search(ns, scope.shared, f"cluster in [{chosen}]", vector, limit))
        return lists

    def _search(
        self, ns: int, partitions: Sequence[str] | None, where: str, vector: Vector, limit: int
    ) -> list[VectorHit]:
        with translated("search"):
            found = self._client.search(
                self._name(ns),
                [vector],
                filter=where,
                limit=limit,
                output_fields=["placement_id"],
                partition_names=list(partitions) if partitions is not None else None,
                anns_field="vector",
                consistency_level="Bounded",
                timeout=self._read_s,
            )
            return [VectorHit(int(hit["placement_id"]), float(hit["distance"])) for hit in found[0]]

    def _name(self, ns: int) -> str:
        return collection_name(ns, self._owner)

    @property
    def _client(self) -> MilvusClient:
        if self._opened is None:
            raise BackendAwayError("the connection is closed")
        return self._opened
