"""Namespaces as rows: made, set, marked for deletion, and looked at by every write that goes into one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from clag_server.catalog import lexical, reads
from clag_server.catalog.api import EmbedderPin, Namespace
from clag_server.catalog.rows import namespace_from_row
from clag_server.catalog.schema import namespaces, operations
from clag_server.catalog.settings_json import NO_SETTINGS, settings_from_json, settings_to_json
from clag_server.catalog.transaction import WriteTx
from clag_server.types.errors import AlreadyExists, EtagMismatch, NamespaceDeleted, NotFound
from clag_server.types.namespace import NamespaceSettings

# Plain SQL: every write of a batch comes by here.
_READ_LIVE: Final = "SELECT name, embedder_dim, deleting, settings FROM namespaces WHERE ns = ?"
_LAST_GIVEN: Final = "SELECT seq FROM sqlite_sequence WHERE name = 'namespaces'"


@dataclass(frozen=True, slots=True)
class Live:
    """What writes need of a namespace: numbers in its vectors, and its default time to live (None: for ever)."""

    dim: int
    time_to_live_ns: int | None


def require_live(tx: WriteTx, ns: int) -> Live:
    """Return what a write into the namespace needs.

    Raises:
        NamespaceDeleted: it is being deleted, or was deleted while the caller had it open.
        NotFound: there never was such a namespace.
    """
    row = tx.connection.exec_driver_sql(_READ_LIVE, (ns,)).one_or_none()
    if row is None:
        raise _missing(tx, ns)
    name, dim, deleting, settings = row
    if deleting:
        raise NamespaceDeleted(name)
    if settings == NO_SETTINGS:
        return Live(dim, None)
    return Live(dim, settings_from_json(settings).default_time_to_live_ns)


def ensure_namespace(tx: WriteTx, name: str, embedder: EmbedderPin) -> Namespace:
    """Return the namespace of a name, made when there is none. Raises NamespaceDeleted while one goes."""
    found = _find(tx, namespaces.c.name == name)
    if found is None:
        return _insert(tx, name, embedder, NamespaceSettings(), revision=0, now_ns=time.time_ns())
    if found.deleting:
        raise NamespaceDeleted(name)
    return namespace_from_row(found)


def create_namespace(
    tx: WriteTx, name: str, embedder: EmbedderPin, settings: NamespaceSettings, *, now_ns: int
) -> Namespace:
    """Make a namespace. Raises AlreadyExists, also while one of that name is being deleted."""
    if _find(tx, namespaces.c.name == name) is not None:
        raise AlreadyExists("namespace", name)
    return _insert(tx, name, embedder, settings, revision=tx.next_revision(), now_ns=now_ns)


def update_namespace(tx: WriteTx, ns: int, settings: NamespaceSettings, *, etag: str, now_ns: int) -> Namespace:
    """Replace the settings; the same ones again change nothing. An empty etag matches any.

    Raises:
        NotFound: there is no such namespace.
        NamespaceDeleted: it is being deleted, or was.
        EtagMismatch: the settings changed since.
    """
    require_live(tx, ns)
    row = _row(tx, ns)
    if etag and etag != str(row.revision):
        raise EtagMismatch(str(row.revision))
    text = settings_to_json(settings, before=row.settings)
    if text != row.settings:
        tx.connection.execute(
            sa.update(namespaces)
            .where(namespaces.c.ns == ns)
            .values(settings=text, revision=tx.next_revision(), update_time_ns=now_ns)
        )
    return namespace_from_row(_row(tx, ns))


def mark_deleting(tx: WriteTx, ns: int, *, now_ns: int) -> Namespace:
    """Say that the namespace goes; doing so again changes nothing. Raises NotFound, NamespaceDeleted."""
    row = _row(tx, ns)
    if not row.deleting:
        tx.connection.execute(
            sa.update(namespaces)
            .where(namespaces.c.ns == ns)
            .values(deleting=sa.true(), revision=tx.next_revision(), update_time_ns=now_ns)
        )
    return namespace_from_row(_row(tx, ns))


def _insert(
    tx: WriteTx, name: str, embedder: EmbedderPin, settings: NamespaceSettings, *, revision: int, now_ns: int
) -> Namespace:
    tx.connection.execute(
        sa.insert(namespaces).values(
            name=name,
            embedder_name=embedder.name,
            embedder_fingerprint=embedder.fingerprint,
            embedder_dim=embedder.dim,
            create_time_ns=now_ns,
            created=0,
            duplicates=0,
            rejected=0,
            deleted=0,
            memories=0,
            placed=0,
            outbox_head=0,
            next_cluster=1,
            next_episode=1,
            settings=settings_to_json(settings),
            update_time_ns=now_ns,
            revision=revision,
        )
    )
    namespace = reads.get_namespace(tx.connection, name)
    lexical.create_index(tx, namespace.ns)
    return namespace


def _find(tx: WriteTx, where: sa.ColumnElement[bool]) -> sa.Row[*tuple[Any, ...]] | None:
    return tx.connection.execute(sa.select(namespaces).where(where)).one_or_none()


def _row(tx: WriteTx, ns: int) -> sa.Row[*tuple[Any, ...]]:
    row = _find(tx, namespaces.c.ns == ns)
    if row is None:
        raise _missing(tx, ns)
    return row


def _missing(tx: WriteTx, ns: int) -> NamespaceDeleted | NotFound:
    """Return the error for a number without a row: numbers are never given out twice, so one below was deleted."""
    last = tx.connection.exec_driver_sql(_LAST_GIVEN).scalar() or 0
    if not 0 < ns <= last:
        return NotFound("namespace", str(ns))
    # Only the operation that deleted it still knows its name.
    name = tx.connection.scalar(sa.select(operations.c.namespace).where(operations.c.ns == ns).limit(1))
    return NamespaceDeleted(name or str(ns))
