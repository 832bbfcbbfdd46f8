"""Long-running operations: they end, go on after a restart, wait out what passes, stop when asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.memory.operations import OperationKindRunner, OperationRun, Operations, new_operation
from clag_server.types.errors import FieldViolation, InvalidField, StorageFailed
from clag_server.types.operation import JsonValue, Operation, OperationKind, OperationState
from tests.memory.builders import START_NS


@asynccontextmanager
async def running(path: Path, run: OperationKindRunner) -> AsyncIterator[Operations]:
    catalog = SqliteCatalog(path / "catalog.db")
    await catalog.open()
    operations = Operations(catalog, now_ns=lambda: START_NS)
    operations.register(OperationKind.REINDEX, run)
    await operations.start()
    try:
        yield operations
    finally:
        await operations.stop()
        await catalog.close()


def asked(**request: JsonValue) -> Operation:
    return new_operation(OperationKind.REINDEX, ns=None, namespace="", request=request, now_ns=START_NS)


async def last(operations: Operations, operation: Operation) -> Operation:
    seen = operation
    async with asyncio.timeout(20):
        async for state in operations.watch(operation.operation_id):
            seen = state
    return seen


async def test_an_operation_ends_with_its_result_and_is_kept(tmp_path: Path) -> None:
    async def run(run: OperationRun) -> Mapping[str, JsonValue]:
        await run.report("working", done=1, total=2)
        return {"answer": run.operation.request["question"]}

    async with running(tmp_path, run) as operations:
        end = await last(operations, await operations.submit(asked(question=42)))
        assert (end.state, end.result, end.done) == (OperationState.SUCCEEDED, {"answer": 42}, 2)
        assert end.end_time_ns == START_NS
    async with running(tmp_path, run) as operations:
        assert (await operations.get(end.operation_id)).result == {"answer": 42}


async def test_an_operation_goes_on_from_its_saved_progress_after_a_restart(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def endless(run: OperationRun) -> Mapping[str, JsonValue]:
        await run.report("counting", done=7, total=9, progress={"at": 7}, durable=True)
        begun.set()
        await asyncio.Event().wait()
        return {}

    async def rest(run: OperationRun) -> Mapping[str, JsonValue]:
        return {"resumed at": run.operation.progress["at"]}

    async with running(tmp_path, endless) as operations:
        operation = await operations.submit(asked())
        await begun.wait()
    async with running(tmp_path, rest) as operations:
        end = await last(operations, operation)
        if not end.state.ended:
            end = await operations.get(operation.operation_id)
        assert end.result == {"resumed at": 7}


async def test_an_operation_stops_at_its_next_report_when_a_client_asks(tmp_path: Path) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def run(run: OperationRun) -> Mapping[str, JsonValue]:
        begun.set()
        await go.wait()
        await run.report("more", done=1, total=2)
        raise AssertionError("it was asked to stop")

    async with running(tmp_path, run) as operations:
        operation = await operations.submit(asked())
        await begun.wait()
        assert (await operations.cancel(operation.operation_id)).cancel_asked
        go.set()
        assert (await last(operations, operation)).state is OperationState.CANCELLED


async def test_a_failed_operation_says_why(tmp_path: Path) -> None:
    async def run(_run: OperationRun) -> Mapping[str, JsonValue]:
        raise InvalidField(FieldViolation("embedding_model", "is not served"))

    async with running(tmp_path, run) as operations:
        end = await last(operations, await operations.submit(asked()))
        assert (end.state, end.error) == (OperationState.FAILED, "embedding_model: is not served")


async def test_a_fault_of_the_server_is_named_by_an_incident_and_not_by_its_words(tmp_path: Path) -> None:
    async def run(_run: OperationRun) -> Mapping[str, JsonValue]:
        raise RuntimeError("secret words")

    async with running(tmp_path, run) as operations:
        end = await last(operations, await operations.submit(asked()))
        assert end.state is OperationState.FAILED
        assert "incident" in end.error
        assert "secret" not in end.error


async def test_a_full_disk_is_waited_out(tmp_path: Path) -> None:
    tries = 0

    async def run(_run: OperationRun) -> Mapping[str, JsonValue]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise StorageFailed("disk full")
        return {"tries": tries}

    async with running(tmp_path, run) as operations:
        end = await last(operations, await operations.submit(asked()))
        assert end.result == {"tries": 2}


async def test_a_slow_watcher_sees_the_newest_state_and_holds_nothing_up(tmp_path: Path) -> None:
    async def run(run: OperationRun) -> Mapping[str, JsonValue]:
        for step in range(1000):
            await run.report("counting", done=step, total=1000)
        return {}

    async with running(tmp_path, run) as operations:
        operation = await operations.submit(asked())
        watch = operations.watch(operation.operation_id)
        first = await anext(watch)
        assert first.state is not OperationState.SUCCEEDED
        await last(operations, operation)
        assert (await anext(watch)).state is OperationState.SUCCEEDED
        await watch.aclose()
