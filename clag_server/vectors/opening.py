"""Bringing a collection in step with the catalog: can it be trusted, rebuild it, catch up, and compare."""

from __future__ import annotations

from collections.abc import Callable

from clag_server.catalog.api import IndexOp
from clag_server.types.digest import add, subtract
from clag_server.vectors.backend import MilvusBackend, Session
from clag_server.vectors.errors import BackendAwayError, BackendFaultError, RebuildWantedError
from clag_server.vectors.outbox import Outbox
from clag_server.vectors.record import IndexRecord
from clag_server.vectors.settings import IndexSettings
from clag_server.vectors.writer import CollectionWriter, digest_of

__all__ = ["catch_up", "rebuild", "why_not_usable"]


async def why_not_usable(
    backend: MilvusBackend,
    session: Session,
    outbox: Outbox,
    record: IndexRecord | None,
    dim: int,
    settings: IndexSettings,
) -> str:
    """Return why the collection needs a rebuild, empty when it can be used; it is loaded then.

    Raises:
        BackendAwayError: The backend did not answer.
        StorageFailed: The catalog cannot be read.
    """
    if record is None:
        return "there is no record of the collection"
    if not record.clean or record.dropped:
        return "the last rebuild or write did not finish"
    if record.dim != dim:
        return f"the vectors have {dim} dimensions, the collection {record.dim}"
    if record.shared and record.buckets != settings.shared_partitions:
        return f"clusters share {settings.shared_partitions} partitions, in the collection {record.buckets}"
    head = await outbox.feed.index_head(outbox.ns)
    if record.applied_seq > head.seq:
        return "the catalog is older than the collection"
    try:
        info = await backend.write(session.connection.describe, outbox.ns)
        if info is None:
            return "the collection is missing"
        if (info.dim, info.stamp) != (record.dim, record.stamp):
            return "the collection is not the one that was written"
        await backend.write(session.connection.load, outbox.ns)
    except BackendFaultError as error:
        return f"the collection cannot be loaded: {error}"
    return ""


async def rebuild(
    writer: CollectionWriter,
    outbox: Outbox,
    dim: int,
    settings: IndexSettings,
    on_progress: Callable[[int, int], None],
) -> int:
    """Replace the collection by one with the catalog's current placements.

    Args:
        writer: Writes it.
        outbox: Moves on to the op that the rebuilt collection is as new as.
        dim: Length of the vectors.
        settings: Sizes of pages and flushes.
        on_progress: Called with rows done and rows in all.

    Returns:
        The newest op that a row of the new collection may come from; `catch_up` has to get past it before the
        numbers of rows can be compared.

    Raises:
        BackendAwayError: The backend went away, or had to be restarted because files were in the way.
        BackendFaultError: It answered with an error.
        StorageFailed: The catalog cannot be read.
    """
    # Read first: what is committed while the pages are read is in the outbox after this op, and applied again.
    head = await outbox.feed.index_head(outbox.ns)
    done, total = 0, head.placed
    on_progress(done, total)
    try:
        await writer.start_over(dim, head)
    except BackendFaultError as error:
        # Neither dropped nor created: the files are in the way. The next session starts without them.
        await writer.backend.purge(writer.session, outbox.ns)
        raise BackendAwayError(str(error)) from error

    def count(rows: int) -> None:
        nonlocal done
        done += rows
        on_progress(min(done, total), total)

    rows = max(1, settings.rebuild_bytes // (4 * dim))
    after = -1
    while ops := await _placements(outbox, after, rows, settings.page_rows):
        # Not flushed in between: Milvus Lite does that itself after 128 MiB, and nothing counts before the end.
        await writer.put(ops, count)
        after = ops[-1].placement_id
    await writer.finish_over()
    outbox.advance(head.seq)
    return (await outbox.feed.index_head(outbox.ns)).seq


async def _placements(outbox: Outbox, after: int, rows: int, page_rows: int) -> list[IndexOp]:
    """Read at least `rows` current placements, or all that are left."""
    ops: list[IndexOp] = []
    while len(ops) < rows:
        page = await outbox.feed.current_placements(outbox.ns, after=after, limit=page_rows)
        if not page:
            break
        ops += page
        after = page[-1].placement_id
    return ops


async def catch_up(
    writer: CollectionWriter, outbox: Outbox, settings: IndexSettings, *, read_through: int = 0
) -> None:
    """Apply all there is, then compare record and number of rows with the catalog's digest and count.

    Ops up to `read_through` may be in the collection before they are applied (see `rebuild`), so they are applied
    whatever else comes meanwhile. All of the outbox has been applied at least once when this compares: a placement
    that was gone when its PUT was read has had its DELETE then, so the collection holds exactly what is current.

    Raises:
        RebuildWantedError: They differ.
        BackendAwayError, BackendFaultError, StorageFailed: As the calls they come from.
    """
    outbox.caught_up = False
    head = None
    while head is None:
        await outbox.make_room()
        outbox.news = True
        await outbox.refresh()
        whole = outbox.caught_up
        while ops := outbox.overlay.after(outbox.applied, settings.batch_rows):
            await writer.apply(ops)
            outbox.advance(ops[-1].seq)
        if not whole or outbox.applied < read_through:
            continue
        # Read in this order, the overlay holds every op that the head includes (and maybe later ones).
        newest = await outbox.feed.index_head(outbox.ns)
        outbox.news = True
        await outbox.refresh()
        head = newest if outbox.caught_up else None
    tail = [op for op in outbox.overlay.after(outbox.applied, len(outbox.overlay)) if op.seq <= head.seq]
    came = [op for op in tail if op.put]
    went = [op for op in tail if not op.put]
    if writer.record.digest != add(subtract(head.digest, digest_of(came)), digest_of(went)):
        raise RebuildWantedError("the record of the collection does not fit the catalog")
    expected = head.placed - len(came) + len(went)
    rows = await writer.backend.write(writer.session.connection.count, outbox.ns)
    if rows != expected:
        raise RebuildWantedError(f"the collection has {rows} rows where the catalog has {expected}")
