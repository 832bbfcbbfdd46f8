"""The clients of the crash benchmark: they go on over every death of the server, and write down what they are told.

Streams resume by themselves; now and then one is thrown away as if its own process had died, and opened anew from
its first item. Everything else (creates, deletes, updates, moves, merges, splits, re-organizations, rebuilds) is
sent once; creates and deletes that had no answer are sent again after the restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from clag.v1 import admin_service_pb2 as admin_pb
from clag.v1 import cluster_service_pb2 as cluster_pb
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient, ClagError
from google.protobuf.field_mask_pb2 import FieldMask
from grpc import StatusCode
from grpc.aio import AioRpcError

from bench.crash_ledger import Entry, Ledger
from bench.crash_texts import GROUP, NAMESPACE, group_of, in_group, input_of, text_of
from bench.store_support import START_S

_AWAY_S: Final = 0.3
_EDITORS: Final = 4
_ITEMS: Final = 160
"""Items of one stream; the next one has another id."""


class Load:
    """Clients of one server address.

    Args:
        client: Used over all lives of the server.
        ledger: What was sent and answered.
        rng: Decides everything.
        unserved: Methods that the server does not serve ("Service/Method").
        streams: Streams at once.
    """

    def __init__(
        self, client: AsyncClient, ledger: Ledger, rng: random.Random, unserved: Sequence[str], streams: int = 4
    ) -> None:
        self._client = client
        self.calls = client
        """Serves all but the streams; a new one after each restart, which does not wait before it connects."""
        self._ledger = ledger
        self._rng = rng
        self._streams = streams
        self._stream_number = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._flow = asyncio.Event()
        self._editing = [asyncio.Lock() for _ in range(_EDITORS)]
        self._updating: set[int] = set()
        self._ending = False
        self._open_creates: set[int] = set()
        self._open_groups: set[str] = set()
        self.done: Counter[str] = Counter()
        """Calls that were answered, by kind."""
        self.fault: BaseException | None = None
        kinds: dict[str, tuple[Callable[[], Awaitable[None]], int]] = {
            "MemoryService/CreateMemory": (self._create, 3),
            "MemoryService/DeleteMemory": (self._delete, 3),
            "MemoryService/DeleteMemories": (self._delete_group, 1),
            "MemoryService/UpdateMemory": (self._update, 3),
            "ClusterService/MoveMemories": (self._move, 3),
            "ClusterService/MergeClusters": (self._merge, 1),
            "ClusterService/SplitCluster": (self._split, 2),
            "AdminService/Reindex": (self._reindex, 1),
            "AdminService/Reorganize": (self._reorganize, 1),
        }
        self._edits = [
            (name.partition("/")[2], call, weight) for name, (call, weight) in kinds.items() if name not in unserved
        ]

    # --- life
    def begin(self) -> None:
        """Start the clients."""
        self._flow.set()
        self._tasks = [asyncio.create_task(self._keep_streaming()) for _ in range(self._streams)]
        self._tasks += [asyncio.create_task(self._keep_editing(lock)) for lock in self._editing]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def hold(self) -> None:
        """Send nothing new."""
        self._flow.clear()

    def go_on(self) -> None:
        """Send again. Raises what ended a client early."""
        if self.fault is not None:
            raise self.fault
        self._flow.set()

    async def idle(self) -> None:
        """Wait until no edit is on its way: closing `calls` would cancel it, and its client with it."""
        async with self._no_edits():
            pass

    @contextlib.asynccontextmanager
    async def _no_edits(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for lock in self._editing:
                await stack.enter_async_context(lock)
            yield

    async def end(self) -> None:
        """Stop the clients."""
        self._ending = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not self._ending:
            self.fault = RuntimeError("a client was cancelled") if task.cancelled() else task.exception()

    # --- streams
    async def _keep_streaming(self) -> None:
        while True:
            self._stream_number += 1
            stream_id = f"stream-{self._stream_number}"
            entries: list[Entry] = []
            finished = False
            while not finished:
                try:
                    finished = await self._one_life(stream_id, entries)
                except ClagError as error:
                    # The client gives up on a server that was away before it ever opened the stream, and one with
                    # another embedder takes none before everything is embedded again.
                    if error.code not in (StatusCode.UNAVAILABLE, StatusCode.FAILED_PRECONDITION):
                        raise
                    self.done["stream not opened"] += 1
                    await asyncio.sleep(_AWAY_S)
                else:
                    self.done["stream thrown away"] += not finished

    async def _one_life(self, stream_id: str, entries: list[Entry]) -> bool:
        """Stream until all items are durable (True), or until this client gives up in the middle (False)."""
        thrown_at = self._rng.randrange(2 * _ITEMS)
        ingestion = self._client.ingest(NAMESPACE, self._items(entries), stream_id=stream_id)
        async with ingestion:
            async for outcome in ingestion:
                for before in entries[: ingestion.resumed_at - 1]:
                    self._ledger.stored(before.serial)
                self._ledger.stored(entries[outcome.seq - 1].serial, outcome.memory_id)
                self.done["Ingest"] += 1
                if outcome.seq == thrown_at:
                    return False
        for entry in entries:
            self._ledger.stored(entry.serial)
        return True

    async def _items(self, entries: list[Entry]) -> AsyncIterator[types_pb2.MemoryInput]:
        """Yield what was yielded before, then new items at a walking pace."""
        for entry in list(entries):
            yield input_of(entry)
        while len(entries) < _ITEMS:
            await self._flow.wait()
            for _ in range(self._rng.randrange(1, 6)):
                entry = self._ledger.new()
                if self._rng.random() < 0.5:
                    entry.memory_id = f"given-{entry.serial}"
                entries.append(entry)
                yield input_of(entry)
            await asyncio.sleep(self._rng.random() * 0.15)

    # --- edits
    async def _keep_editing(self, lock: asyncio.Lock) -> None:
        while True:
            await self._flow.wait()
            await asyncio.sleep(self._rng.random() * 0.12)
            if not self._flow.is_set():
                continue
            name, call, _ = self._rng.choices(self._edits, [weight for _, _, weight in self._edits])[0]
            async with lock:
                try:
                    await call()
                except (ClagError, AioRpcError) as error:
                    # A refusal (gone, pinned, in use) is an answer; of a server that is away see `resolve`.
                    code = error.code if isinstance(error, ClagError) else error.code()
                    self.done[f"{name} {code.name}"] += 1
                else:
                    self.done[name] += 1

    async def resolve(self) -> None:
        """Send again what had no answer; after this only streams can be in doubt."""
        async with self._no_edits():
            for serial in list(self._open_creates):
                await _until_taken(partial(self._create, self._ledger.entries[serial]))
            for group in list(self._open_groups):
                await _until_taken(partial(self._delete_group, group))
            for entry in self._ledger.entries.values():
                if entry.deleting and not entry.deleted:
                    await _until_taken(partial(self._delete, entry))

    def _some(self) -> Entry | None:
        """A memory that is there, mostly a new one."""
        for _ in range(20):
            count = len(self._ledger.entries)
            newest = self._rng.random() < 0.5
            serial = self._rng.randrange(max(0, count - 200) if newest else 0, max(count, 1))
            entry = self._ledger.entries.get(serial)
            if entry is not None and entry.settled:
                return entry
        return None

    async def _create(self, entry: Entry | None = None) -> None:
        entry = entry or self._ledger.new()
        self._open_creates.add(entry.serial)
        created = await self.calls.create_memory(
            NAMESPACE, input_of(entry), request_id=f"create-{entry.serial}", timeout_s=20
        )
        self._ledger.stored(entry.serial, created.memory.memory_id)
        self._open_creates.discard(entry.serial)

    async def _delete(self, entry: Entry | None = None) -> None:
        entry = entry or self._some()
        if entry is not None:
            entry.deleting = True
            await self.calls.delete_memory(NAMESPACE, entry.memory_id, allow_missing=True)
            self._ledger.deleted(entry)

    async def _delete_group(self, group: str = "") -> None:
        if not group:
            some = self._some()
            if some is None:
                return
            group = group_of(some)
        first = int(group[1:]) * GROUP
        members = [self._ledger.entries.get(first + i) for i in range(GROUP)]
        whole = [entry for entry in members if entry is not None and entry.acked >= 0]
        if len(whole) < GROUP:
            return
        for entry in whole:
            entry.deleting = True
        self._open_groups.add(group)
        request = pb.DeleteMemoriesRequest(namespace=NAMESPACE, filter=in_group(group))
        complete = False
        while not complete:
            complete = (await self.calls.memory.DeleteMemories(request, timeout=20)).complete
        for entry in whole:
            self._ledger.deleted(entry)
        self._open_groups.discard(group)

    async def _update(self) -> None:
        entry = self._some()
        if entry is None or entry.serial in self._updating:
            return  # of two updates at once nobody knows which is the newer
        entry.sent += 1
        version = entry.sent
        self._updating.add(entry.serial)
        request = pb.UpdateMemoryRequest(
            namespace=NAMESPACE,
            memory_id=entry.memory_id,
            memory=types_pb2.MemoryInput(text=text_of(entry.serial, version)),
            update_mask=FieldMask(paths=["text"]),
        )
        try:
            await self.calls.memory.UpdateMemory(request, timeout=20)
            self._ledger.updated(entry, version)
        finally:
            self._updating.discard(entry.serial)

    async def _clusters(self) -> list[types_pb2.Cluster]:
        return [cluster async for cluster in self.calls.list_clusters(NAMESPACE) if cluster.memory_count]

    async def _move(self) -> None:
        clusters = await self._clusters()
        moved = [entry.memory_id for entry in (self._some() for _ in range(5)) if entry is not None]
        if clusters and moved:
            request = cluster_pb.MoveMemoriesRequest(
                edit=cluster_pb.Edit(namespace=NAMESPACE),
                target_cluster_id=self._rng.choice(clusters).cluster_id,
                memory_ids=sorted(set(moved)),
            )
            await self.calls.clusters.MoveMemories(request, timeout=20)

    async def _merge(self) -> None:
        clusters = await self._clusters()
        if len(clusters) > 4:
            target, source = self._rng.sample(clusters, 2)
            request = cluster_pb.MergeClustersRequest(
                edit=cluster_pb.Edit(namespace=NAMESPACE),
                target_cluster_id=target.cluster_id,
                source_cluster_ids=[source.cluster_id],
            )
            await self.calls.clusters.MergeClusters(request, timeout=20)

    async def _split(self) -> None:
        clusters = [cluster for cluster in await self._clusters() if cluster.memory_count > 20]
        if clusters:
            request = cluster_pb.SplitClusterRequest(
                edit=cluster_pb.Edit(namespace=NAMESPACE),
                cluster_id=self._rng.choice(clusters).cluster_id,
                parts=2,
            )
            await self.calls.clusters.SplitCluster(request, timeout=20)

    async def _reorganize(self) -> None:
        request = admin_pb.ReorganizeRequest(namespace=NAMESPACE, dry_run=self._rng.random() < 0.2)
        await self.calls.admin.Reorganize(request, timeout=20)

    async def _reindex(self) -> None:
        if self._rng.random() < 0.3:
            await self.calls.admin.Reindex(admin_pb.ReindexRequest(namespace=NAMESPACE), timeout=20)


async def _until_taken(call: Callable[[], Awaitable[None]]) -> None:
    """Call again while the namespace is switched to another embedder and asks callers to come back."""
    async with asyncio.timeout(START_S):
        while True:
            try:
                return await call()
            except (ClagError, AioRpcError) as error:
                code = error.code if isinstance(error, ClagError) else error.code()
                if code is not StatusCode.RESOURCE_EXHAUSTED:
                    raise
            await asyncio.sleep(_AWAY_S)
