"""Rows of long-running operations. Who runs them is the domain's business."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from clag_server.catalog.ids import IdMaker
from clag_server.catalog.rows import to_json
from clag_server.catalog.schema import namespaces
from clag_server.catalog.schema import operations as table
from clag_server.catalog.transaction import WriteTx
from clag_server.types.errors import NotFound, RequestIdReused
from clag_server.types.operation import BASE, JsonValue, Operation, OperationKind, OperationState

KEEP_REQUEST_NS: Final = 24 * 3600 * 10**9
"""How long a request id is remembered, in nanoseconds."""

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's Base 32, which leaves out letters that are taken for digits."""

_ID_CHARACTERS: Final = 26
_BITS_PER_CHARACTER: Final = 5
_UNFINISHED: Final = (int(OperationState.PENDING), int(OperationState.RUNNING))

_new_uuid = IdMaker()


def new_operation_id() -> str:
    """Return an id, "op-" and 26 characters; ids of one process sort by the time they were made."""
    number = UUID(_new_uuid()).int
    shifts = range((_ID_CHARACTERS - 1) * _BITS_PER_CHARACTER, -1, -_BITS_PER_CHARACTER)
    return "op-" + "".join(_ALPHABET[(number >> shift) & (len(_ALPHABET) - 1)] for shift in shifts)


def add(tx: WriteTx, operation: Operation) -> Operation:
    """Store an operation, or return the earlier one of its request id.

    Raises:
        RequestIdReused: that one had another kind or request.
    """
    if operation.request_id:
        same = sa.and_(table.c.namespace == operation.namespace, table.c.request_id == operation.request_id)
        _forget_request(tx, same, before_ns=operation.create_time_ns - KEEP_REQUEST_NS)
        row = tx.connection.execute(sa.select(table).where(same)).one_or_none()
        if row is not None:
            first = _from_row(row)
            if (first.kind, first.request) != (operation.kind, _plain(operation.request)):
                raise RequestIdReused(operation.request_id)
            return first
    values = {
        "operation_id": operation.operation_id,
        "number": tx.next_revision(),
        "ns": operation.ns,
        "namespace": operation.namespace,
        "kind": int(operation.kind),
        "request": to_json(dict(operation.request)),
        "request_id": operation.request_id,
        "cancel_asked": operation.cancel_asked,
        "create_time_ns": operation.create_time_ns,
        **_standing(operation),
    }
    tx.connection.execute(sa.insert(table).values(values))
    return operation


def save(tx: WriteTx, operation: Operation) -> None:
    """Replace how an operation stands; what was asked, and whether to stop, stays as it is.

    Raises:
        NotFound: there is no such operation.
    """
    here = table.c.operation_id == operation.operation_id
    if tx.connection.execute(sa.update(table).where(here).values(_standing(operation))).rowcount == 0:
        raise NotFound("operation", operation.operation_id)


def ask_cancel(tx: WriteTx, operation_id: str) -> Operation:
    """Note that an operation shall stop, unless it ended, and return it; raises NotFound."""
    here = sa.and_(table.c.operation_id == operation_id, table.c.state.in_(_UNFINISHED))
    tx.connection.execute(sa.update(table).where(here).values(cancel_asked=sa.true()))
    return get(tx.connection, operation_id)


def get(connection: sa.Connection, operation_id: str) -> Operation:
    """Return one operation or raise NotFound."""
    row = connection.execute(sa.select(table).where(table.c.operation_id == operation_id)).one_or_none()
    if row is None:
        raise NotFound("operation", operation_id)
    return _from_row(row)


def page(connection: sa.Connection, *, ns: int | None, before: str, limit: int) -> Sequence[Operation]:
    """Return operations newest first, those asked for before the operation `before` ("": all).

    Where that one was forgotten meanwhile, its id says where to go on: ids sort by time.
    """
    statement = sa.select(table).order_by(table.c.number.desc()).limit(limit)
    if ns is not None:
        statement = statement.where(table.c.ns == ns)
    if before:
        number = connection.scalar(sa.select(table.c.number).where(table.c.operation_id == before))
        older = table.c.operation_id < before if number is None else table.c.number < number
        statement = statement.where(older)
    return [_from_row(row) for row in connection.execute(statement)]


def unfinished(connection: sa.Connection, kinds: Sequence[OperationKind] | None) -> Sequence[Operation]:
    """Return operations that did not end, oldest first; of all kinds for None."""
    statement = sa.select(table).where(table.c.state.in_(_UNFINISHED)).order_by(table.c.number)
    if kinds is not None:
        statement = statement.where(table.c.kind.in_([int(kind) for kind in kinds]))
    return [_from_row(row) for row in connection.execute(statement)]


def forget(tx: WriteTx, *, ended_before_ns: int) -> int:
    """Remove operations that ended before; returns how many.

    Of each namespace the last one that left word of where it began stays: what starts by itself counts from there.
    """
    counted = sa.func.json_extract(table.c.progress, f"$.{BASE}").is_not(None)
    last = sa.select(sa.func.max(table.c.number)).where(counted, table.c.ns.in_(sa.select(namespaces.c.ns)))
    gone = sa.delete(table).where(
        table.c.end_time_ns < ended_before_ns, table.c.number.not_in(last.group_by(table.c.ns, table.c.kind))
    )
    return tx.connection.execute(gone).rowcount


def _forget_request(tx: WriteTx, same: sa.ColumnElement[bool], *, before_ns: int) -> None:
    tx.connection.execute(sa.update(table).where(same, table.c.create_time_ns < before_ns).values(request_id=""))


def _standing(operation: Operation) -> dict[str, Any]:
    """Return the columns that change while an operation runs."""
    return {
        "state": int(operation.state),
        "phase": operation.phase,
        "done": operation.done,
        "total": operation.total,
        "progress": to_json(dict(operation.progress)),
        "result": to_json(dict(operation.result)),
        "error": operation.error,
        "end_time_ns": operation.end_time_ns,
    }


def _plain(value: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """Return the value as it comes back from the store, for comparing (a tuple becomes a list)."""
    plain: dict[str, JsonValue] = json.loads(to_json(dict(value)))
    return plain


def _from_row(row: sa.Row[Any]) -> Operation:
    return Operation(
        operation_id=row.operation_id,
        ns=row.ns,
        namespace=row.namespace,
        kind=OperationKind(row.kind),
        state=OperationState(row.state),
        create_time_ns=row.create_time_ns,
        request=json.loads(row.request),
        request_id=row.request_id,
        phase=row.phase,
        done=row.done,
        total=row.total,
        progress=json.loads(row.progress),
        result=json.loads(row.result),
        error=row.error,
        cancel_asked=bool(row.cancel_asked),
        end_time_ns=row.end_time_ns,
    )
