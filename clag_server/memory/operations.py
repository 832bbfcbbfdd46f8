"""Long-running operations: asked for once, durable, resumed after a restart, watched and cancelled.

A kind of operation is a coroutine function that gets an `OperationRun`: it reads there what was asked for and
where it stood, and tells its progress. It must be safe to run again from the last progress that was saved. What
passes by itself (a full disk, a model that loads) is waited out here; any other failure ends the operation with the
reason.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import structlog

from clag_server.catalog.api_log import OperationStore
from clag_server.catalog.operations import new_operation_id
from clag_server.models.api import ModelError, ModelTimeoutError, ModelUnavailableError
from clag_server.types.errors import ClagError, StorageFailed
from clag_server.types.operation import JsonValue, Operation, OperationKind, OperationState

__all__ = ["OperationKindRunner", "OperationRun", "Operations", "new_operation"]

_log = structlog.get_logger(__name__)

KEEP_NS: Final = 7 * 24 * 3600 * 10**9
"""How long an operation is kept after its end, in nanoseconds."""

_FORGET_EVERY_S: Final = 3600.0
_SAVE_EVERY_S: Final = 1.0
"""Progress is saved at most so often; a restart goes on from what was saved."""

_TELL_EVERY_S: Final = 0.1
"""Watchers are told at most so often."""

_FIRST_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 30.0


class _Cancelled(Exception):
    """A client asked the operation to stop."""


OperationKindRunner: TypeAlias = "Callable[[OperationRun], Awaitable[Mapping[str, JsonValue]]]"
"""Runs one operation and returns its result."""


def new_operation(
    kind: OperationKind,
    *,
    ns: int | None,
    namespace: str,
    request: Mapping[str, JsonValue],
    now_ns: int,
    request_id: str = "",
) -> Operation:
    """Return an operation that waits for its turn, under a new id."""
    return Operation(
        operation_id=new_operation_id(),
        ns=ns,
        namespace=namespace,
        kind=kind,
        state=OperationState.PENDING,
        create_time_ns=now_ns,
        request=request,
        request_id=request_id,
    )


class OperationRun:
    """One operation at work."""

    def __init__(self, operation: Operation, store: OperationStore) -> None:
        self.operation = operation
        self._store = store
        self._watchers: set[asyncio.Event] = set()
        self._cancel = operation.cancel_asked
        self._saved_s = 0.0
        self._told_s = 0.0

    async def report(
        self,
        phase: str,
        *,
        done: int,
        total: int,
        progress: Mapping[str, JsonValue] | None = None,
        durable: bool = False,
    ) -> None:
        """Tell how far the operation is.

        Args:
            phase: What it is doing, in a word or two.
            done: Steps of the phase that are done.
            total: Steps of the phase; 0 when not known.
            progress: Where to go on after a restart; None leaves it as it is.
            durable: Whether all of it must be on disk when this returns.

        Raises:
            _Cancelled: A client asked it to stop; the runner of operations handles that.
        """
        self.stop_if_asked()
        before = self.operation
        self.operation = replace(
            before,
            state=OperationState.RUNNING,
            phase=phase,
            done=done,
            total=total,
            progress=before.progress if progress is None else progress,
        )
        now_s = asyncio.get_running_loop().time()
        new_phase = phase != before.phase
        if durable or new_phase or now_s - self._saved_s >= _SAVE_EVERY_S:
            await self._store.save_operation(self.operation)
            self._saved_s = now_s
        if new_phase or now_s - self._told_s >= _TELL_EVERY_S:
            self._told_s = now_s
            self.tell()

    def stop_if_asked(self) -> None:
        """Raise what ends the operation when a client asked it to stop."""
        if self._cancel:
            raise _Cancelled

    def ask_cancel(self) -> None:
        """Have the next report stop it."""
        self._cancel = True
        self.operation = replace(self.operation, cancel_asked=True)

    def tell(self) -> None:
        """Wake who watches."""
        for watcher in self._watchers:
            watcher.set()

    async def watch(self) -> AsyncGenerator[Operation, None]:
        """Yield the operation as it stands, at the reader's pace, until it ended."""
        news = asyncio.Event()
        self._watchers.add(news)
        try:
            while True:
                news.clear()
                now = self.operation
                yield now
                if now.state.ended:
                    return
                await news.wait()
        finally:
            self._watchers.discard(news)


@dataclass(frozen=True, slots=True)
class _Kind:
    run: OperationKindRunner
    cancellable: bool


class Operations:
    """Runs operations, each in a task of its own.

    Args:
        store: Where they are kept.
        now_ns: The wall clock.
    """

    def __init__(self, store: OperationStore, *, now_ns: Callable[[], int]) -> None:
        self._store = store
        self._now_ns = now_ns
        self._kinds: dict[OperationKind, _Kind] = {}
        self._runs: dict[str, OperationRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._forgetting: asyncio.Task[None] | None = None

    def register(self, kind: OperationKind, run: OperationKindRunner, *, cancellable: bool = True) -> None:
        """Say how operations of a kind are run; before `start`."""
        self._kinds[kind] = _Kind(run, cancellable)

    async def start(self) -> None:
        """Resume what a stop or a crash left unfinished."""
        for operation in await self._store.unfinished_operations(tuple(self._kinds)):
            _log.info("operation resumed", operation_id=operation.operation_id, kind=operation.kind.name.lower())
            self._begin(operation)
        self._forgetting = asyncio.create_task(self._forget(), name="forget ended operations")

    async def stop(self) -> None:
        """End the tasks; operations that run are resumed at the next start."""
        tasks = [*self._tasks.values(), *([self._forgetting] if self._forgetting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def submit(self, operation: Operation) -> Operation:
        """Store and begin an operation; with a known request id, return the one that it began."""
        stored = await self._store.add_operation(operation)
        if stored.operation_id not in self._runs and not stored.state.ended:
            self._begin(stored)
        return stored

    async def unfinished(self, ns: int | None, kinds: Iterable[OperationKind]) -> Operation | None:
        """Return the oldest operation of the kinds that is not ended on a namespace (None: of the server's own)."""
        found = await self._store.unfinished_operations(tuple(kinds))
        return next((operation for operation in found if operation.ns == ns), None)

    async def get(self, operation_id: str) -> Operation:
        """Return an operation as it stands. Raises NotFound."""
        run = self._runs.get(operation_id)
        return run.operation if run is not None else await self._store.operation(operation_id)

    async def list(self, *, ns: int | None, before: str, limit: int) -> Sequence[Operation]:
        """Page through operations, newest first; `before` is the last id of the page before, "" for the first."""
        found = await self._store.operations(ns=ns, before=before, limit=limit)
        return [self._runs[o.operation_id].operation if o.operation_id in self._runs else o for o in found]

    async def cancel(self, operation_id: str) -> Operation:
        """Ask an operation to stop; it may end all the same (of some kinds it always does). Raises NotFound."""
        operation = await self._store.operation(operation_id)
        kind = self._kinds.get(operation.kind)
        if kind is not None and not kind.cancellable:
            return await self.get(operation_id)
        asked = await self._store.ask_cancel(operation_id)
        run = self._runs.get(operation_id)
        if run is None:
            return asked
        run.ask_cancel()
        return run.operation

    async def watch(self, operation_id: str) -> AsyncGenerator[Operation, None]:
        """Yield an operation as it advances, at the reader's pace, until it ended. Raises NotFound."""
        run = self._runs.get(operation_id)
        if run is None:
            yield await self._store.operation(operation_id)
            return
        async with aclosing(run.watch()) as states:
            async for operation in states:
                yield operation

    async def end_all_of(self, ns: int, *, but: str) -> None:
        """Stop the other operations of a namespace that goes, and wait for their ends."""
        others = [i for i, run in self._runs.items() if run.operation.ns == ns and i != but]
        tasks = [self._tasks[operation_id] for operation_id in others if operation_id in self._tasks]
        for operation_id in others:
            self._runs[operation_id].ask_cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for operation_id in others:
            await self._end(self._runs[operation_id], OperationState.CANCELLED, error="the namespace was deleted")

    def _begin(self, operation: Operation) -> None:
        run = OperationRun(operation, self._store)
        name = operation.operation_id
        self._runs[name] = run
        self._tasks[name] = asyncio.create_task(self._run(run), name=f"operation {name}")

    async def _run(self, run: OperationRun) -> None:
        operation = run.operation
        pause_s = _FIRST_PAUSE_S
        try:
            while True:
                try:
                    run.stop_if_asked()
                    result = await self._kinds[operation.kind].run(run)
                    await self._end(run, OperationState.SUCCEEDED, result=result)
                except _Cancelled:
                    await self._end(run, OperationState.CANCELLED)
                except (StorageFailed, ModelUnavailableError, ModelTimeoutError) as error:
                    _log.warning("operation waits", operation_id=operation.operation_id, reason=str(error))
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _MAX_PAUSE_S)
                    continue
                except (ClagError, ModelError) as error:
                    await self._end(run, OperationState.FAILED, error=str(error))
                except Exception:  # noqa: BLE001 - a fault of ours ends this operation, not the server
                    incident = secrets.token_hex(8)
                    _log.exception("operation failed", operation_id=operation.operation_id, incident_id=incident)
                    reason = f"the server failed; its log says why under incident {incident}"
                    await self._end(run, OperationState.FAILED, error=reason)
                return
        finally:
            self._tasks.pop(operation.operation_id, None)
            if run.operation.state.ended:
                self._runs.pop(operation.operation_id, None)

    async def _end(
        self,
        run: OperationRun,
        state: OperationState,
        *,
        result: Mapping[str, JsonValue] | None = None,
        error: str = "",
    ) -> None:
        ended = replace(
            run.operation,
            state=state,
            result=result or {},
            error=error,
            done=run.operation.total if state is OperationState.SUCCEEDED else run.operation.done,
            end_time_ns=self._now_ns(),
        )
        await self._store.save_operation(ended)
        run.operation = ended
        run.tell()
        self._runs.pop(ended.operation_id, None)
        _log.info("operation ended", operation_id=ended.operation_id, state=state.name.lower(), error=error)

    async def _forget(self) -> None:
        """Remove operations that ended long ago."""
        while True:
            try:
                await self._store.forget_operations(ended_before_ns=self._now_ns() - KEEP_NS)
            except StorageFailed as error:
                _log.warning("ended operations are kept for now", reason=str(error))
            await asyncio.sleep(_FORGET_EVERY_S)
