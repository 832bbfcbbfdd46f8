"""Sizes and times of the vector index, with the measurement behind each default (two cores, 384 dimensions)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["IndexSettings"]


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """How the index batches, waits and bounds its memory."""

    flush_rows: int = 2_000
    """Pending ops after which they are written and flushed together. An unflushed row costs Milvus Lite about
    3 us in every search (32 ms at 10,000), a flush about 18 ms per partition it touches."""
    batch_rows: int = 32_768
    """Most ops of a backlog that are written and flushed together. The more at once, the more rows a partition gets
    for one flush: with 700 partitions and batches of 2,000 ops only 500 a second were written."""
    idle_s: float = 1.0
    """Fewer ops are written when none has come for this long."""
    max_age_s: float = 30.0
    """A trickle that never pauses is written at least this often."""
    upsert_rows: int = 256
    """Rows of one request: small, because the client packs rows while it holds the interpreter lock."""
    overlay_ops: int = 50_000
    """Most pending ops kept in memory (75 MB); a longer backlog is served by scanning the catalog."""
    page_rows: int = 2_048
    """Rows read from the catalog at once."""
    scan_rows: int = 400_000
    """Most rows kept while the catalog is scanned (about 600 MB); the rest is read again for every search."""
    rebuild_bytes: int = 32 << 20
    """Vectors that a rebuild sorts by partition and writes together (20,000 rows of 384 dimensions): with pages of
    2,048 rows instead, requests of a dozen rows each cost a fifth more."""
    verify: bool = True
    """Whether a collection that is opened is read through in the background and compared with the catalog."""
    verify_rows: int = 4_096
    """Most rows that one step of that reads (0.15 s of Milvus Lite)."""
    verify_share: float = 0.2
    """Part of the time that reading may take, so that searches hardly notice it."""
    partitions: int = 1_000
    """Most partitions of a collection, the shared ones included (Milvus servers stop at 1,024 by default)."""
    shared_partitions: int = 500
    """Partitions that the clusters beyond the limit share by hash; with few, a search reads many other rows."""
    read_timeout_s: float = 10.0
    """Longest search; a backend that needs longer counts as hung."""
    write_timeout_s: float = 120.0
    """Longest other call. The first one that names a collection may read all of it, listing included."""
    first_retry_s: float = 0.25
    """Delay after the first failure; it doubles with each further one."""
    max_retry_s: float = 30.0
    """Longest delay between two tries."""
    visible_after_s: float = 10.0
    """On a Milvus server: how long an applied op stays in the overlay, because reads there trail writes."""
    stop_timeout_s: float = 10.0
    """Longest time that stopping spends on writing what is pending; the rest stays in the outbox."""

    def __post_init__(self) -> None:
        # One own partition at least, beside the shared ones and Milvus' `_default`.
        if self.partitions < self.shared_partitions + 2 or self.shared_partitions < 1:
            raise ValueError(
                f"partitions ({self.partitions}) must exceed shared_partitions ({self.shared_partitions}) by 2"
            )
