"""Reading a collection through, in the background, to see whether it holds exactly what the catalog placed.

Record, stamp and count are compared before a collection is used (`vectors.opening`). They do not notice rows that
were exchanged one for one: a folder restored from an older copy, a write that was lost beside one that was doubled.
So the keys of every partition are read once a session, a bounded piece at a time and with pauses, and their digest
is compared with the catalog's. Batches go on meanwhile: a partition that one of them touched is read again, so the
sum is that of one moment, the moment after the newest batch.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from clag_server.catalog.api import IndexOp
from clag_server.types.digest import add, placements_digest, subtract
from clag_server.vectors.outbox import Outbox
from clag_server.vectors.settings import IndexSettings
from clag_server.vectors.writer import CollectionWriter, digest_of

__all__ = ["ContentCheck"]

_NAMED = 3  # partitions that a reason names


class ContentCheck:
    """Compares one collection with the catalog, once.

    Args:
        writer: Its writer, caught up: what it holds is what the writer's record says.
        outbox: Its outbox.
        settings: Sizes and pace.
    """

    def __init__(self, writer: CollectionWriter, outbox: Outbox, settings: IndexSettings) -> None:
        self._writer = writer
        self._outbox = outbox
        self._settings = settings
        self._seen: dict[str, int] = {}
        self._strays: set[str] = set()
        self.rows = 0
        """Rows read so far."""

    async def run(self) -> str:
        """Read everything and return what is wrong, empty when nothing is.

        Raises:
            BackendAwayError, BackendFaultError: As the reads of the collection.
            StorageFailed: The catalog cannot be read (only where something is wrong).
        """
        writer = self._writer
        writer.touched.clear()
        while True:
            async with writer.writing:
                self._forget_touched()
                waiting = writer.layout.known - self._seen.keys()
                if not waiting:
                    right = subtract(writer.record.digest, self._skipped())
                    there = 0
                    for digest in self._seen.values():
                        there = add(there, digest)
                    break
            await self._read(min(waiting))
        return "" if there == right and not self._strays else await self._where()

    async def _read(self, partition: str) -> None:
        """Read one partition in bounded pieces, from its beginning again whenever a batch touches it."""
        writer, limit = self._writer, self._settings.verify_rows
        loop = asyncio.get_running_loop()
        after: int | None = -1
        digest = 0
        while after is not None:
            async with writer.writing:
                started_s = loop.time()
                if partition in writer.touched or partition not in writer.layout.known:
                    return  # chosen again, or gone
                ids, clusters = await writer.backend.read(
                    writer.session.connection.keys, writer.ns, partition, after=after, limit=limit
                )
                digest = add(digest, placements_digest(ids, clusters))
                taken_s = loop.time() - started_s
                self.rows += len(ids)
                if any(writer.layout.find(cluster) != partition for cluster in set(clusters)):
                    self._strays.add(partition)
                after = ids[-1] if len(ids) == limit else None
                if after is None:
                    self._seen[partition] = digest
            await asyncio.sleep(taken_s * (1 / self._settings.verify_share - 1))

    def _forget_touched(self) -> None:
        for name in self._writer.touched:
            self._seen.pop(name, None)
            self._strays.discard(name)
        self._writer.touched.clear()

    def _skipped(self) -> int:
        """Return the digest of placements that the record counts and the collection never got."""
        skipped = self._writer.skipped
        return placements_digest(list(skipped.keys()), list(skipped.values()))

    async def _where(self) -> str:
        """Say which partitions differ from the catalog, as far as that can still be told."""
        expected: defaultdict[str, list[IndexOp]] = defaultdict(list)
        after = -1
        while page := await self._outbox.feed.current_placements(
            self._outbox.ns, after=after, limit=self._settings.page_rows
        ):
            for op in page:
                expected[self._writer.layout.find(op.cluster)].append(op)
            after = page[-1].placement_id
        await self._outbox.refresh()
        # What changes just now proves nothing.
        pending = self._outbox.overlay.after(self._outbox.applied, len(self._outbox.overlay))
        unsure = {self._writer.layout.find(op.cluster) for op in pending} | self._writer.touched
        wrong = sorted(
            name
            for name in (expected.keys() | self._seen.keys()) - unsure
            if name in self._strays or digest_of(expected[name]) != self._seen.get(name, 0)
        )
        named = ", ".join(wrong[:_NAMED]) + (" and others" if len(wrong) > _NAMED else "")
        return f"the collection does not hold what the catalog placed ({named or 'nothing is certain'})"
