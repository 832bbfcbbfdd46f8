"""Operations outlive the process that runs them, and asking twice asks once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clag_server.catalog.api import Catalog
from clag_server.catalog.operations import KEEP_REQUEST_NS, new_operation_id
from clag_server.types.errors import NotFound, RequestIdReused
from clag_server.types.operation import Operation, OperationKind, OperationState
from tests.catalog import support
from tests.catalog.conftest import Reopen

NOW = support.NOW


def asked(
    namespace: str = "robot",
    *,
    ns: int | None = 1,
    kind: OperationKind = OperationKind.REINDEX,
    request_id: str = "",
) -> Operation:
    """Return an operation as it is when it was just asked for."""
    return Operation(
        operation_id=new_operation_id(),
        ns=ns,
        namespace=namespace,
        kind=kind,
        state=OperationState.PENDING,
        create_time_ns=NOW,
        request={"embedder": "tiny", "deep": {"list": [1, 2.5, None, True]}},
        request_id=request_id,
    )


def ids(operations: object) -> list[str]:
    assert isinstance(operations, list)
    return [operation.operation_id for operation in operations]


async def test_an_operation_and_its_progress_are_there_after_a_restart(reopen: Reopen) -> None:
    catalog = await reopen()
    operation = await catalog.add_operation(asked())
    running = replace(
        operation, state=OperationState.RUNNING, phase="reading", done=3, total=9, progress={"after": 77}
    )
    await catalog.save_operation(running)
    catalog = await reopen()
    assert await catalog.operation(operation.operation_id) == running
    assert await catalog.unfinished_operations() == [running]
    ended = replace(
        running, state=OperationState.FAILED, result={"rows": 3}, error="the disk is full", end_time_ns=NOW + 5
    )
    await catalog.save_operation(ended)
    catalog = await reopen()
    assert await catalog.operation(operation.operation_id) == ended
    assert await catalog.unfinished_operations() == []


async def test_asking_again_with_the_same_request_id_returns_the_first_operation(catalog: Catalog) -> None:
    first = await catalog.add_operation(asked(request_id="r"))
    await catalog.save_operation(replace(first, state=OperationState.SUCCEEDED, end_time_ns=NOW + 1))
    again = await catalog.add_operation(asked(request_id="r"))
    assert again.operation_id == first.operation_id
    assert again.state is OperationState.SUCCEEDED
    assert len(await catalog.operations(ns=None, before="", limit=10)) == 1


async def test_a_request_id_that_comes_with_another_request_is_refused(catalog: Catalog) -> None:
    await catalog.add_operation(asked(request_id="r"))
    with pytest.raises(RequestIdReused):
        await catalog.add_operation(replace(asked(request_id="r"), request={"embedder": "other"}))
    with pytest.raises(RequestIdReused):
        await catalog.add_operation(asked(request_id="r", kind=OperationKind.REEMBED))
    assert len(await catalog.operations(ns=None, before="", limit=10)) == 1


async def test_a_request_id_belongs_to_one_namespace_and_to_one_day(catalog: Catalog) -> None:
    first = await catalog.add_operation(asked(request_id="r"))
    other = await catalog.add_operation(asked("other", ns=2, request_id="r"))
    late = replace(asked(request_id="r"), create_time_ns=NOW + KEEP_REQUEST_NS)
    assert (await catalog.add_operation(late)).operation_id == first.operation_id
    later = replace(late, create_time_ns=NOW + KEEP_REQUEST_NS + 1, request={})
    await catalog.add_operation(later)
    listed = await catalog.operations(ns=None, before="", limit=10)
    assert ids(listed) == [later.operation_id, other.operation_id, first.operation_id]


async def test_operations_without_a_request_id_are_never_the_same(catalog: Catalog) -> None:
    one, two = await catalog.add_operation(asked()), await catalog.add_operation(asked())
    assert ids(await catalog.operations(ns=None, before="", limit=10)) == [two.operation_id, one.operation_id]


async def test_a_wish_to_cancel_stays_whatever_the_runner_saves_meanwhile(catalog: Catalog) -> None:
    operation = await catalog.add_operation(asked())
    assert (await catalog.ask_cancel(operation.operation_id)).cancel_asked
    await catalog.save_operation(replace(operation, state=OperationState.RUNNING, done=1))
    assert (await catalog.operation(operation.operation_id)).cancel_asked


async def test_an_operation_that_ended_is_not_cancelled_any_more(catalog: Catalog) -> None:
    operation = await catalog.add_operation(asked())
    ended = replace(operation, state=OperationState.SUCCEEDED, end_time_ns=NOW)
    await catalog.save_operation(ended)
    assert await catalog.ask_cancel(operation.operation_id) == ended


async def test_pages_list_the_newest_first_and_only_those_of_the_namespace(catalog: Catalog) -> None:
    added = [await catalog.add_operation(asked(f"n{i % 2}", ns=1 + i % 2)) for i in range(7)]
    newest_first = ids([operation for operation in reversed(added) if operation.ns == 1])
    first = await catalog.operations(ns=1, before="", limit=3)
    rest = await catalog.operations(ns=1, before=first[-1].operation_id, limit=3)
    assert ids(first) + ids(rest) == newest_first
    assert len(await catalog.operations(ns=None, before="", limit=100)) == 7


async def test_a_page_goes_on_where_it_was_also_when_its_last_operation_was_forgotten(catalog: Catalog) -> None:
    added = [await catalog.add_operation(asked()) for _ in range(3)]
    await catalog.save_operation(replace(added[1], state=OperationState.CANCELLED, end_time_ns=NOW))
    assert await catalog.forget_operations(ended_before_ns=NOW + 1) == 1
    rest = await catalog.operations(ns=None, before=added[1].operation_id, limit=10)
    assert ids(rest) == [added[0].operation_id]


async def test_unfinished_operations_come_oldest_first_and_by_kind(catalog: Catalog) -> None:
    kinds = (OperationKind.REINDEX, OperationKind.DELETE_NAMESPACE, OperationKind.REINDEX)
    added = [await catalog.add_operation(asked(kind=kind)) for kind in kinds]
    assert await catalog.unfinished_operations() == added
    assert await catalog.unfinished_operations([OperationKind.REINDEX]) == [added[0], added[2]]
    assert await catalog.unfinished_operations([]) == []


async def test_only_operations_that_ended_long_ago_are_forgotten(catalog: Catalog) -> None:
    old, young, running = [await catalog.add_operation(asked()) for _ in range(3)]
    await catalog.save_operation(replace(old, state=OperationState.SUCCEEDED, end_time_ns=NOW))
    await catalog.save_operation(replace(young, state=OperationState.FAILED, end_time_ns=NOW + 10))
    assert await catalog.forget_operations(ended_before_ns=NOW + 10) == 1
    assert ids(await catalog.operations(ns=None, before="", limit=9)) == [running.operation_id, young.operation_id]


async def test_an_operation_that_does_not_exist_is_not_found(catalog: Catalog) -> None:
    for attempt in (catalog.operation("op-x"), catalog.ask_cancel("op-x"), catalog.save_operation(asked())):
        with pytest.raises(NotFound, match="operation"):
            await attempt


def test_ids_are_ascending_and_fit_the_contract() -> None:
    made = [new_operation_id() for _ in range(1_000)]
    assert made == sorted(set(made))
    assert {len(operation_id) for operation_id in made} == {29}
    assert all(operation_id.startswith("op-") and operation_id[3:].isalnum() for operation_id in made)
