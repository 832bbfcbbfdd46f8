"""One place of a fault drill: a server on its own data directory, a client, and what the client was told."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from clag.v1 import admin_service_pb2 as admin_pb
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient, ClagError

from bench.crash_catalog import copied, look
from bench.crash_ledger import Ledger, Verdict, verify
from bench.crash_texts import NAMESPACE, input_of
from bench.crash_verify import full_check
from bench.store_support import Knobs, StoreServer, index_ready, settled

_POLL_S: Final = 0.1


class Skipped(Exception):
    """The drill cannot be done on this machine; the message says why."""


class NotRecovered(Exception):
    """The store did not do what it promises; the message says what it did."""


class Site:
    """A server and what it was given.

    Args:
        root: Directory of the drill.
        settings: Of the server, by dotted name.
        index: Sizes and times of the vector index.
    """

    def __init__(self, root: Path, settings: Mapping[str, str], index: Mapping[str, float]) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.clock = root / "clock"
        self.clock.write_text("0", encoding="utf-8")
        fast = {"flush_rows": 100, "batch_rows": 100, "idle_s": 0.2, "max_retry_s": 1.0, **index}
        self.server = StoreServer(root, settings, knobs=Knobs(index=fast, clock=str(self.clock)))
        self.ledger = Ledger()

    async def begin(self, client: AsyncClient, count: int = 200) -> None:
        """Store memories and wait until the index has them."""
        await self.fill(client, count)
        await self.searchable(client)
        await index_ready(client, NAMESPACE)

    async def searchable(self, client: AsyncClient) -> None:
        """Wait until every memory is embedded and placed."""
        await settled(client, NAMESPACE, (admin_pb.STAGE_EMBED,))

    def forget_lock(self) -> None:
        """Remove the lock file, as if the file system had no locks: the next server gets one of its own."""
        (self.server.data_dir / "clag.lock").unlink()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncClient]:
        """A client of the running server."""
        async with self.server.client() as client:
            yield client

    async def fill(self, client: AsyncClient, count: int) -> None:
        """Store memories and note which are acknowledged; goes on over restarts and refusals."""
        entries = [self.ledger.new() for _ in range(count)]
        async with client.ingest(NAMESPACE, map(input_of, entries)) as ingestion:
            async for outcome in ingestion:
                self.ledger.stored(entries[outcome.seq - 1].serial, outcome.memory_id)
        for entry in entries:
            self.ledger.stored(entry.serial)

    async def refused(self, client: AsyncClient, tries: int = 200) -> ClagError:
        """Write until a write is refused; returns the refusal. What was written counts as acknowledged."""
        for _ in range(tries):
            entry = self.ledger.new()
            try:
                created = await client.create_memory(NAMESPACE, input_of(entry), timeout_s=15)
            except ClagError as error:
                return error
            self.ledger.stored(entry.serial, created.memory.memory_id)
        raise NotRecovered(f"{tries} writes were accepted where none can be stored")

    async def answers(self, client: AsyncClient) -> float:
        """Ask for the newest memory by its text; seconds until it was found. Raises NotRecovered."""
        entry = self.ledger.settled()[-1]
        memory = await client.get_memory(NAMESPACE, entry.memory_id)
        fresh = types_pb2.ReadOptions(at_least_as_fresh=memory.revision)
        started = time.perf_counter()
        async with client.retrieve(NAMESPACE, memory.text, slm_use=pb.SLM_USE_NEVER, read=fresh) as stages:
            found = [hit.memory.memory_id async for stage in stages for hit in stage.memories.hits]
        if entry.memory_id not in found:
            raise NotRecovered(f"{entry.memory_id} is not found by its text")
        return time.perf_counter() - started

    async def index_leaves_ready(self, client: AsyncClient, timeout_s: float = 30) -> str:
        """Wait until the index says that it is not READY; returns what it says."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    status = (await client.stats(NAMESPACE)).index
                    if status.state != admin_pb.INDEX_STATE_READY:
                        return status.detail
                    await asyncio.sleep(_POLL_S)
        raise NotRecovered("the index says READY though it cannot be")

    async def recovered(self) -> Verdict:
        """Go on working, then hold everything against the ledger: through the contract, and in the files."""
        await self.server.serving(60)
        async with self.client() as client:
            await self.fill(client, 40)
            await self.searchable(client)
            await self.answers(client)
            await index_ready(client, NAMESPACE)
            verdict = await full_check(client, self.ledger)
        await self.server.stop()
        with copied(self.server.catalog) as connection:
            seen, files = look(connection, NAMESPACE)
        files.add(verify(self.ledger, seen))
        verdict.add(files)
        return verdict
