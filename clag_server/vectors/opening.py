"""Bringing a collection in step with the catalog: can it be trusted, rebuild it, catch up, and compare."""

from __future__ import annotations

from collections.abc import Callable

from clag_server.vectors.backend import MilvusBackend, Session
from clag_server.vectors.errors import BackendAwayError, BackendFaultError, RebuildWantedError
from clag_server.vectors.outbox import Outbox
from clag_server.vectors.record import IndexRecord
from clag_server.vectors.settings import IndexSettings
from clag_server.vectors.writer import CollectionWriter

__all__ = ["catch_up", "rebuild", "why_not_usable"]


async def why_not_usable(
    backend: MilvusBackend, session: Session, outbox: Outbox, record: IndexRecord | None, dim: int
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
    head_seq, _ = await outbox.feed.index_head(outbox.ns)
    if record.applied_seq > head_seq:
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
    head_seq, total = await outbox.feed.index_head(outbox.ns)
    on_progress(0, total)
    try:
        await writer.start_over(dim, head_seq)
    except BackendFaultError as error:
        # Neither dropped nor created: the files are in the way. The next session starts without them.
        await writer.backend.purge(writer.session, outbox.ns)
        raise BackendAwayError(str(error)) from error
    done = unflushed = 0
    after = -1
    while ops := await outbox.feed.current_placements(outbox.ns, after=after, limit=settings.page_rows):
        await writer.put(ops)
        after = ops[-1].placement_id
        done += len(ops)
        on_progress(min(done, total), total)
        unflushed += len(ops)
        if unflushed >= settings.rebuild_flush_rows:
            await writer.flush()
            unflushed = 0
    await writer.finish_over()
    outbox.advance(head_seq)
    read_through, _ = await outbox.feed.index_head(outbox.ns)
    return read_through


async def catch_up(
    writer: CollectionWriter, outbox: Outbox, settings: IndexSettings, *, read_through: int = 0
) -> None:
    """Apply all there is, then compare the number of rows with the catalog's.

    Ops up to `read_through` may be in the collection before they are applied (see `rebuild`), so they are applied
    whatever else comes meanwhile.

    Raises:
        RebuildWantedError: The numbers differ.
        BackendAwayError, BackendFaultError, StorageFailed: As the calls they come from.
    """
    outbox.caught_up = False
    head_seq = expected = 0
    while not outbox.caught_up or outbox.applied < read_through:
        while ops := outbox.overlay.after(outbox.applied, settings.flush_rows):
            await writer.apply(ops)
            outbox.advance(ops[-1].seq)
        # Read in this order, the overlay holds every op that the count includes (and maybe later ones).
        head_seq, expected = await outbox.feed.index_head(outbox.ns)
        outbox.news = True
        await outbox.refresh()
    for op in outbox.overlay.after(outbox.applied, len(outbox.overlay)):
        if op.seq <= head_seq:
            expected -= 1 if op.put else -1
    rows = await writer.backend.write(writer.session.connection.count, outbox.ns)
    if rows != expected:
        raise RebuildWantedError(f"the collection has {rows} rows where the catalog has {expected}")
