"""The dense parts of the index: names, order of hits, the overlay, the record file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clag_server.catalog.api import IndexOp
from clag_server.vectors.api import VectorHit
from clag_server.vectors.overlay import Overlay
from clag_server.vectors.partitions import PartitionLayout, collection_name, own_partition
from clag_server.vectors.record import IndexRecord, RecordFile, recorded_namespaces
from clag_server.vectors.settings import IndexSettings
from clag_server.vectors.topk import merge, nearest
from tests.vectors.catalog_double import unit


@pytest.mark.parametrize("name", ["../../victim", "1 or 1", -1, 1.0, True, None])
def test_only_natural_numbers_become_names_of_collections_and_partitions(name: object) -> None:
    with pytest.raises(ValueError, match="natural number"):
        collection_name(name)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="natural number"):
        own_partition(name)  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 12))
def test_nearest_gives_the_best_scores_and_breaks_ties_by_id(levels: list[int], limit: int) -> None:
    vectors = np.asarray([[level, 0.0] for level in levels], dtype=np.float32)
    ids = np.arange(len(levels), dtype=np.int64)[::-1].copy()
    hits = nearest(ids, vectors, np.asarray([1.0, 0.0], dtype=np.float32), limit)
    expected = sorted(zip(levels, ids.tolist(), strict=True), key=lambda pair: (-pair[0], pair[1]))
    assert [(hit.score, hit.placement_id) for hit in hits] == expected[:limit]


def test_merged_hits_hold_each_placement_once_and_none_that_left() -> None:
    first = [VectorHit(1, 0.9), VectorHit(2, 0.5), VectorHit(3, 0.4)]
    second = [VectorHit(2, 0.5), VectorHit(4, 0.45)]
    assert [hit.placement_id for hit in merge((first, second), 3, without={1})] == [2, 4, 3]


def test_a_cluster_never_changes_its_partition_while_it_has_rows() -> None:
    layout = PartitionLayout(limit=5, buckets=2)
    for cluster in range(10):
        layout.known.add(layout.place(cluster))
    homes = {cluster: layout.find(cluster) for cluster in range(10)}
    layout.known.discard("c0")
    assert {cluster: layout.place(cluster) for cluster in range(10)} == homes


def test_a_search_scope_names_only_partitions_that_exist() -> None:
    layout = PartitionLayout(limit=4, buckets=1, known={"c1", "s0"}, shared={5})
    scope = layout.scope([1, 2, 5])
    assert (scope.own, scope.shared, scope.shared_clusters) == (["c1"], ["s0"], [5])


def test_partition_limits_that_leave_no_room_are_refused() -> None:
    with pytest.raises(ValueError, match="must exceed"):
        IndexSettings(partitions=64, shared_partitions=64)


def test_the_overlay_forgets_exactly_what_was_written() -> None:
    overlay = Overlay()
    vector = unit(1)
    overlay.extend(
        [
            IndexOp(1, put=True, placement_id=10, cluster=1, event_time_ns=0, vector=vector),
            IndexOp(2, put=True, placement_id=11, cluster=1, event_time_ns=0, vector=vector),
            IndexOp(3, put=False, placement_id=10, cluster=1, event_time_ns=0, vector=None),
        ]
    )
    assert list(overlay.view([1]).ids) == [11]
    overlay.drop_through(2)
    assert list(overlay.view(None).ids) == []
    assert overlay.view([1]).deleted == {10}
    assert overlay.view([2]).deleted == frozenset()
    overlay.drop_through(3)
    assert (len(overlay), overlay.view(None).deleted, overlay.last_seq) == (0, frozenset(), 3)


def test_a_record_survives_being_written_and_read(tmp_path: Path) -> None:
    record = IndexRecord(dim=3, stamp="ab", applied_seq=7, digest=-(2**63), clean=True, shared=(4, 9))
    RecordFile(tmp_path / "index", 12).save(record)
    assert RecordFile(tmp_path / "index", 12).load() == record
    assert recorded_namespaces(tmp_path / "index") == [12]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"format": 9}', b'{"format": 1, "dim": "x"}', b"\xff"])
def test_a_record_that_cannot_be_trusted_counts_as_missing(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "ns_1.json").write_bytes(body)
    assert RecordFile(tmp_path, 1).load() is None
