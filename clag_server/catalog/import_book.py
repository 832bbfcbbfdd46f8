"""What an import must remember from batch to batch, also over a restart: the table `import_numbers`.

Each entry is (kind, source) -> number, for one stream of one namespace:

- "cluster", "episode": which of ours was made of one of the source;
- "space": 1 when embeddings are of our embedder's space;
- "representative": a memory id -> 16 x cluster + its place among the cluster's representatives;
- "link ID": key of a memory that links to the memory ID, which has not come yet (source: that key).

Reserved places belong to no stream (its id is ""), as the pipeline asks for them by key: "place" -> the episode,
"home" -> its cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import sqlalchemy as sa

from clag_server.catalog.schema import import_numbers
from clag_server.catalog.traces import chunks
from clag_server.catalog.transaction import WriteTx
from clag_server.types.transfer import ReservedPlace

CLUSTER: Final = "cluster"
EPISODE: Final = "episode"
SPACE: Final = "space"
REPRESENTATIVE: Final = "representative"
MAX_REPRESENTATIVES: Final = 16
_LINK: Final = "link "
_PLACE: Final = "place"
_HOME: Final = "home"
_NO_STREAM: Final = ""

_PUT: Final = (
    "INSERT INTO import_numbers (ns, stream_id, kind, source, number) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (ns, stream_id, kind, source) DO UPDATE SET number = excluded.number"
)


class ImportBook:
    """The entries of one stream, inside one transaction."""

    def __init__(self, tx: WriteTx, ns: int, stream_id: str) -> None:
        self._tx = tx
        self._ns = ns
        self._stream = stream_id
        self._known: dict[tuple[str, str], int | None] = {}

    def get(self, kind: str, source: str) -> int | None:
        """Return the number of a source, None when there is none."""
        if (kind, source) not in self._known:
            t = import_numbers.c
            self._known[kind, source] = self._tx.connection.scalar(
                sa.select(t.number).where(
                    t.ns == self._ns, t.stream_id == self._stream, t.kind == kind, t.source == source
                )
            )
        return self._known[kind, source]

    def put(self, kind: str, source: str, number: int) -> None:
        """Remember a number."""
        self._known[kind, source] = number
        self._tx.executemany(_PUT, [(self._ns, self._stream, kind, source, number)])

    def of_kind(self, kind: str) -> Sequence[tuple[str, int]]:
        """Return all sources of a kind with their numbers, by number."""
        t = import_numbers.c
        rows = self._tx.connection.execute(
            sa.select(t.source, t.number)
            .where(t.ns == self._ns, t.stream_id == self._stream, t.kind == kind)
            .order_by(t.number)
        )
        return [(row.source, row.number) for row in rows]

    def forget(self, kind: str) -> None:
        """Forget a kind."""
        t = import_numbers.c
        self._tx.connection.execute(
            sa.delete(import_numbers).where(t.ns == self._ns, t.stream_id == self._stream, t.kind == kind)
        )

    def await_target(self, memory_id: str, source_key: int) -> None:
        """Remember that a memory links to one that has not come."""
        self.put(_LINK + memory_id, str(source_key), source_key)

    def awaited(self, memory_ids: Iterable[str]) -> Mapping[str, list[int]]:
        """Take out who links to memories that have come now: keys by memory id."""
        found: dict[str, list[int]] = {}
        t = import_numbers.c
        for some in chunks(memory_ids):
            here = sa.and_(
                t.ns == self._ns, t.stream_id == self._stream, t.kind.in_([_LINK + memory_id for memory_id in some])
            )
            for kind, key in self._tx.connection.execute(sa.select(t.kind, t.number).where(here)):
                found.setdefault(kind.removeprefix(_LINK), []).append(key)
            if found:
                self._tx.connection.execute(sa.delete(import_numbers).where(here))
        return found

    def never_came(self) -> Mapping[int, set[str]]:
        """Take out all that is still awaited: by key of the linking memory, the ids that did not come."""
        t = import_numbers.c
        here = sa.and_(
            t.ns == self._ns,
            t.stream_id == self._stream,
            t.kind >= _LINK,
            t.kind < _LINK[:-1] + chr(ord(_LINK[-1]) + 1),
        )
        found: dict[int, set[str]] = {}
        for kind, key in self._tx.connection.execute(sa.select(t.kind, t.number).where(here)):
            found.setdefault(key, set()).add(kind.removeprefix(_LINK))
        self._tx.connection.execute(sa.delete(import_numbers).where(here))
        return found


def reserve(tx: WriteTx, ns: int, key: int, place: ReservedPlace) -> None:
    """Reserve a place for a memory; a place that it had is replaced."""
    tx.executemany(
        _PUT,
        [
            (ns, _NO_STREAM, _PLACE, str(key), place.episode),
            (ns, _NO_STREAM, _HOME, str(place.episode), place.cluster),
        ],
    )


def release(tx: WriteTx, ns: int, keys: Iterable[int]) -> None:
    """Forget the reserved places of memories."""
    t = import_numbers.c
    for some in chunks([str(key) for key in keys]):
        tx.connection.execute(
            sa.delete(import_numbers).where(
                t.ns == ns, t.stream_id == _NO_STREAM, t.kind == _PLACE, t.source.in_(some)
            )
        )


def reserved_places(connection: sa.Connection, ns: int, keys: Sequence[int]) -> dict[int, ReservedPlace]:
    """Return the reserved places of memories, by key."""
    t = import_numbers.c
    here = sa.and_(t.ns == ns, t.stream_id == _NO_STREAM)
    places: dict[int, int] = {}
    for some in chunks([str(int(key)) for key in keys]):
        rows = connection.execute(sa.select(t.source, t.number).where(here, t.kind == _PLACE, t.source.in_(some)))
        places.update((int(source), episode) for source, episode in rows)
    homes: dict[int, int] = {}
    for wanted in chunks(sorted({str(episode) for episode in places.values()})):
        rows = connection.execute(sa.select(t.source, t.number).where(here, t.kind == _HOME, t.source.in_(wanted)))
        homes.update((int(source), cluster) for source, cluster in rows)
    return {key: ReservedPlace(episode, homes[episode]) for key, episode in places.items() if episode in homes}


def awaited_clusters(connection: sa.Connection, ns: int) -> set[int]:
    """Return the clusters in which a place is reserved."""
    place, home = import_numbers.alias("place"), import_numbers.alias("home")
    rows = connection.scalars(
        sa.select(home.c.number)
        .distinct()
        .join_from(
            home,
            place,
            sa.and_(
                place.c.ns == home.c.ns,
                place.c.stream_id == _NO_STREAM,
                place.c.kind == _PLACE,
                sa.cast(place.c.number, sa.Text) == home.c.source,
            ),
        )
        .where(home.c.ns == ns, home.c.stream_id == _NO_STREAM, home.c.kind == _HOME)
    )
    return set(rows)
