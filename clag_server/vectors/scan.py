"""Searching without the index: exact, over the catalog's current placements.

Used while the index starts, is rebuilt, or is away. A search of some clusters reads their placements and nothing
else, so that it takes as long in a large namespace as in a small one. The first search of the whole namespace reads
all of them (about 1 s for 100,000); they are kept, so later searches read only what is new, which is found at the
end: placement ids grow by commit order. Above `keep_rows` the rest is read again by every search. Rows that were
moved or deleted since are stale hits, as the contract of a vector index allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clag_server.catalog.api import IndexFeed, IndexOp
from clag_server.types.memory import Matrix, Vector
from clag_server.vectors.api import VectorHit
from clag_server.vectors.topk import merge, nearest

if TYPE_CHECKING:
    from clag_server.vectors.backend import MilvusBackend

__all__ = ["CatalogScan"]


@dataclass(frozen=True, slots=True)
class _Page:
    """Some placements: aligned arrays of n rows; vectors (n, dim)."""

    ids: NDArray[np.int64]
    vectors: Matrix


class CatalogScan:
    """Brute force over one namespace.

    Args:
        feed: The catalog.
        ns: The namespace.
        page_rows: Rows read at once.
        keep_rows: Most rows kept between searches.
        backend: Its reader threads do the arithmetic.
    """

    def __init__(
        self,
        feed: IndexFeed,
        ns: int,
        *,
        page_rows: int,
        keep_rows: int,
        backend: MilvusBackend,
    ) -> None:
        self._feed = feed
        self._ns = ns
        self._page_rows = page_rows
        self._keep_rows = keep_rows
        self._backend = backend
        self._pages: list[_Page] = []
        self._last = -1
        self._reading = asyncio.Lock()
        self._release_after = False

    @property
    def kept_rows(self) -> int:
        """Rows held in memory."""
        return sum(page.ids.size for page in self._pages)

    def release(self) -> None:
        """Free the memory (when a search reads just now: after it); the next search reads from the start."""
        self._release_after = self._reading.locked()
        if not self._release_after:
            self._pages, self._last = [], -1

    async def search(self, clusters: Sequence[int] | None, query: Vector, limit: int) -> list[VectorHit]:
        """Return the nearest placements of the clusters (None: all), best first.

        Raises:
            StorageFailed: The catalog cannot be read.
        """
        if clusters is not None:
            ops = await self._feed.placements_in(self._ns, sorted(set(clusters)))
            return await self._backend.read(_search_ops, ops, query, limit)
        async with self._reading:
            complete = await self._keep_up()
            pages, after = tuple(self._pages), self._last
        if self._release_after:
            self.release()
        best = await self._backend.read(_search_pages, pages, query, limit)
        while not complete:
            ops = await self._feed.current_placements(self._ns, after=after, limit=self._page_rows)
            if not ops:
                break
            after = ops[-1].placement_id
            page = await self._backend.read(_page, ops)
            found = await self._backend.read(_search_pages, (page,), query, limit)
            best = merge((best, found), limit)
        return best

    async def _keep_up(self) -> bool:
        """Read what is new; return whether everything is kept."""
        kept = self.kept_rows
        while kept < self._keep_rows:
            ops = await self._feed.current_placements(self._ns, after=self._last, limit=self._page_rows)
            if not ops:
                return True
            page = await self._backend.read(_page, ops)
            kept += page.ids.size
            # Small reads are joined, so that many of them do not become many pages.
            join = bool(self._pages) and self._pages[-1].ids.size + page.ids.size <= self._page_rows
            if join:
                page = await self._backend.read(_joined, self._pages[-1], page)
            # Only now, and together: a search that is cancelled above must not leave a hole.
            self._pages[-1 if join else len(self._pages) :] = [page]
            self._last = ops[-1].placement_id
        return False


def _page(ops: Sequence[IndexOp]) -> _Page:
    rows = [(op, op.vector) for op in ops if op.vector is not None]
    return _Page(
        np.asarray([op.placement_id for op, _ in rows], dtype=np.int64),
        np.stack([vector for _, vector in rows]),
    )


def _joined(first: _Page, second: _Page) -> _Page:
    return _Page(
        np.concatenate((first.ids, second.ids)),
        np.concatenate((first.vectors, second.vectors)),
    )


def _search_pages(pages: Sequence[_Page], query: Vector, limit: int) -> list[VectorHit]:
    return merge([nearest(page.ids, page.vectors, query, limit) for page in pages], limit)


def _search_ops(ops: Sequence[IndexOp], query: Vector, limit: int) -> list[VectorHit]:
    return _search_pages((_page(ops),), query, limit) if ops else []
