"""Who links to whom, and who supersedes whom, among imported memories: targets come in any order, in any batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from clag_server.catalog.import_book import ImportBook
from clag_server.catalog.import_clusters import still_linked
from clag_server.catalog.schema import memories
from clag_server.catalog.store import supersede
from clag_server.catalog.traces import INSERT_LINK, chunks
from clag_server.catalog.transaction import WriteTx
from clag_server.types.memory import Memory


class ImportLinks:
    """The memories of one batch and what they point to, inside one transaction."""

    def __init__(self, tx: WriteTx, ns: int, book: ImportBook, *, now_ns: int) -> None:
        self._tx = tx
        self._ns = ns
        self._book = book
        self._now_ns = now_ns
        self._keys: dict[str, int] = {}
        self._came: dict[str, int] = {}
        self._links: dict[int, tuple[str, ...]] = {}
        self._supersedes: list[tuple[str, int, tuple[str, ...]]] = []

    def look_up(self, memory_ids: Sequence[str]) -> None:
        """Find out which ids are there."""
        for some in chunks(memory_ids):
            found = self._tx.connection.execute(
                sa.select(memories.c.memory_id, memories.c.key).where(
                    memories.c.ns == self._ns, memories.c.memory_id.in_(some)
                )
            )
            self._keys.update((row.memory_id, row.key) for row in found)

    def key_of(self, memory_id: str) -> int | None:
        """Return the key of a memory that was there or has come; None for one that was not looked up."""
        return self._keys.get(memory_id)

    def came(self, memory: Memory, key: int, *, keep: bool) -> None:
        """Take note of a stored memory; its links count where the organization is kept."""
        self._keys[memory.memory_id] = self._came[memory.memory_id] = key
        if keep:
            self._links[key] = tuple(link.memory_id for link in memory.links if link.memory_id != memory.memory_id)
        if memory.supersedes:
            self._supersedes.append((memory.memory_id, key, memory.supersedes))

    def save(self) -> None:
        """Write who links to whom, and who supersedes whom; targets that have not come are awaited."""
        self._link()
        for memory_id, key, older in self._supersedes:
            self._supersede(memory_id, key, older)

    def _link(self) -> None:
        tx, ns = self._tx, self._ns
        wanted = {target for targets in self._links.values() for target in targets}
        self.look_up(sorted(wanted - self._keys.keys()))
        rows: list[tuple[Any, ...]] = []
        for key, targets in self._links.items():
            for target in targets:
                there = self._keys.get(target)
                if there is None:
                    self._book.await_target(target, key)
                else:
                    rows.append((ns, there, key))
        waiting = self._book.awaited(self._came)
        for key, target in still_linked(
            tx, ns, [(key, target) for target, keys in waiting.items() for key in keys]
        ):
            rows.append((ns, self._came[target], key))
        tx.executemany(INSERT_LINK, rows)

    def _supersede(self, memory_id: str, key: int, older: tuple[str, ...]) -> None:
        """Mark the older ones that nothing supersedes yet: rows that were kept say it themselves."""
        free = self._tx.connection.scalars(
            sa.select(memories.c.memory_id).where(
                memories.c.ns == self._ns, memories.c.memory_id.in_(older), memories.c.superseded_by == ""
            )
        ).all()
        if free:
            supersede(self._tx, self._ns, memory_id, key, tuple(free), now_ns=self._now_ns)
