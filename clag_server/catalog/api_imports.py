"""What a catalog promises to imports. Rules as in `catalog.api`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from clag_server.types.ingest import StreamPosition, StreamRef
from clag_server.types.transfer import EmbeddedMemory, ImportOptions, ImportResult, ImportRow, ReservedPlace


class CatalogImports(Protocol):
    """Storing rows that were exported elsewhere."""

    async def import_rows(
        self,
        ns: int,
        rows: Sequence[ImportRow],
        *,
        first_seq: int,
        stream: StreamRef,
        options: ImportOptions,
        now_ns: int,
    ) -> ImportResult:
        """Store rows `first_seq`, `first_seq`+1, ... and move the watermark, in one transaction.

        Rows below the watermark are skipped, without an outcome. A memory whose id is there is a DUPLICATE, or
        replaced in its place: key, links of others and history stay, its old words become history. With
        `keep_organization` clusters and episodes get new numbers, the same ones whenever the stream is resumed;
        memories with an embedding of our space (see `ImportedNamespace`; without one, embeddings are dropped) are
        placed at once in the state that they had, others wait STORED with their annotations and a reserved place.
        Without it clusters are passed over and memories are STORED as new, with ids, times, attributes and tags.
        Clusters without a member are invisible to routing; `finish_import` removes those that stayed so.
        Raises StreamFenced, SequenceGap, NamespaceDeleted, NotFound.
        """

    async def finish_import(
        self, ns: int, ref: StreamRef, *, last_seq: int, now_ns: int
    ) -> tuple[StreamPosition, ImportResult]:
        """Check that the stream ends at `last_seq`, give clusters their representatives, drop what leads nowhere.

        That is links to memories that did not come, and clusters that stayed empty. Raises StreamFenced,
        SequenceGap, NamespaceDeleted.
        """

    async def reserved_places(self, ns: int, keys: Sequence[int]) -> Mapping[int, ReservedPlace]:
        """Places that imports reserved for memories that they could not place; the others are absent."""

    async def place_reserved(self, ns: int, embedded: Sequence[EmbeddedMemory], *, now_ns: int) -> ImportResult:
        """Place memories where a place is reserved for them, in one transaction; the reservations go.

        Those that have annotations are EVOLVED, the others ROUTED. The outcomes name the placed ones; one whose
        cluster is gone stays STORED. Raises NamespaceDeleted.
        """
