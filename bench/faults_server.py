"""Drills of the server itself: its models die or hang, its clock jumps, a second one wants the data."""

from __future__ import annotations

import signal
import time
from typing import Final

from bench.crash_texts import NAMESPACE
from bench.faults_site import NotRecovered, Site, Skipped
from bench.store_support import MODEL_CHILD, StoreServer, index_ready
from clag_server.models.specs import ModelKind, StoreError
from clag_server.models.store import ModelStore
from clag_server.settings import load

_HELD: Final = 3
"""Exit code of a server whose data directory another one holds."""

_HOUR_S: Final = 3600


def local_embedder() -> dict[str, str]:
    """Settings with a real embedder in a worker process and no language model."""
    return {"models.backend": "local", "models.slm": "", "models.hang_timeout_s": "4"}


async def worker_killed(site: Site) -> str:
    """The model worker is killed in the middle of an ingest."""
    return await _worker_signalled(site, signal.SIGKILL)


async def worker_hung(site: Site) -> str:
    """The model worker stops answering in the middle of an ingest."""
    return await _worker_signalled(site, signal.SIGSTOP)


async def _worker_signalled(site: Site, number: signal.Signals) -> str:
    models = load({}).models
    try:
        ModelStore(models.cache_dir).resolve(models.embedder, ModelKind.EMBEDDER)
    except StoreError as error:
        raise Skipped(f"no embedder on this machine: {error}") from error
    await site.server.start()
    async with site.client() as client:
        await site.begin(client, 64)
        await site.fill(client, 200)
        worker = site.server.child(MODEL_CHILD)
        if worker is None:
            raise NotRecovered("the model worker does not run")
        worker.send_signal(number)
        started = time.perf_counter()
        await site.fill(client, 40)
        stored_s = time.perf_counter() - started
        await site.searchable(client)
        searchable_s = time.perf_counter() - started
        again = site.server.child(MODEL_CHILD)
        if again is None or again.pid == worker.pid:
            raise NotRecovered("the model worker was not replaced")
    return f"40 stored meanwhile in {stored_s:.1f} s; all searchable after {searchable_s:.1f} s"


async def clock_back(site: Site) -> str:
    """The clock is set back an hour while memories come in, and right again after a restart."""
    await site.server.start()
    async with site.client() as client:
        await site.begin(client)
        site.clock.write_text(str(-_HOUR_S), encoding="utf-8")
        await site.fill(client, 100)
        await site.searchable(client)
        await site.answers(client)
        listed = [memory.memory_id async for memory in client.list_memories(NAMESPACE)]
        if listed != [entry.memory_id for entry in site.ledger.settled()]:
            raise NotRecovered("memories are not listed in the order of their arrival")
        site.clock.write_text("0", encoding="utf-8")
        await site.fill(client, 100)
        await site.searchable(client)
        await index_ready(client, NAMESPACE)
    await site.server.stop()
    await site.server.start()
    return "order of arrival kept, all found"


async def second_server(site: Site) -> str:
    """A second server on the data directory is refused with the reason; the first one goes on."""
    await site.server.start()
    async with site.client() as client:
        await site.begin(client)
        second = StoreServer(site.root / "second", {"storage.data_dir": str(site.server.data_dir)})
        try:
            await second.spawn()
            code = await second.exited()
            said = second.log_tail(1)
        finally:
            await second.close()
        if code != _HELD:
            raise NotRecovered(f"the second server ended with {code}: {said}")
        if str(site.server.pid) not in said:
            raise NotRecovered(f"the second server does not say who holds the data: {said}")
        await site.fill(client, 50)
    return f"exit code {code}, names the first one's process"


async def copied_lock(site: Site) -> str:
    """A second server gets past the lock (a file system without locks): the first one may not write any more."""
    await site.server.start()
    async with site.client() as client:
        await site.begin(client)
        site.forget_lock()
        second = StoreServer(site.root / "second", {"storage.data_dir": str(site.server.data_dir)})
        try:
            await second.start()
            refusal = await site.refused(client)
            await second.stop()
        finally:
            await second.close()
    await site.server.power_cut()
    await site.server.start()
    return f"the first one refuses to write: {refusal.message[:70]!r}"
