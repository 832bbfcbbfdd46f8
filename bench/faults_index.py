"""Drills of the vector index: its process dies or hangs, its files are torn or gone, its disk is full."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from bench.crash_texts import NAMESPACE
from bench.faults_disk import Ballast
from bench.faults_site import NotRecovered, Site
from bench.store_support import INDEX_CHILD, index_ready


async def killed(site: Site) -> str:
    """The index's process is killed: questions are answered meanwhile, it is back by itself."""
    return await _signalled(site, signal.SIGKILL)


async def hung(site: Site) -> str:
    """The index's process stops answering: it is replaced, questions are answered meanwhile."""
    return await _signalled(site, signal.SIGSTOP)


async def torn(site: Site) -> str:
    """Every file of the index is cut in half while the server is stopped."""
    return await _damaged(site, _halve)


async def missing(site: Site) -> str:
    """Half of the index's files vanish while the server is stopped."""
    rng = random.Random(5)
    return await _damaged(site, lambda path: path.unlink() if rng.random() < 0.5 else None)


async def gone(site: Site) -> str:
    """The whole index vanishes while the server is stopped."""
    return await _damaged(site, lambda _: shutil.rmtree(site.server.data_dir / "index", ignore_errors=True))


async def disk_full(site: Site) -> str:
    """The index's own file system is full: memories are stored and found, the index follows when there is room."""
    await site.server.start()
    async with site.client() as client:
        await site.begin(client)
        ballast = Ballast(site.server.data_dir / "index")
        ballast.fill()
        await site.fill(client, 1_500)
        await site.searchable(client)
        detail = await site.index_leaves_ready(client)
        answer_s = await site.answers(client)
        ballast.drop()
        started = time.perf_counter()
        await index_ready(client, NAMESPACE)
        ready_s = time.perf_counter() - started
    return f"1,500 stored and found ({answer_s:.1f} s) while it said {detail[:70]!r}; READY {ready_s:.1f} s after"


async def _signalled(site: Site, number: signal.Signals) -> str:
    await site.server.start()
    async with site.client() as client:
        await site.begin(client)
        child = _child(site)
        child.send_signal(number)
        started = time.perf_counter()
        answers = [await site.answers(client)]
        await site.fill(client, 50)
        while site.server.child(INDEX_CHILD) in (None, child):
            answers.append(await site.answers(client))
        await index_ready(client, NAMESPACE)
        ready_s = time.perf_counter() - started
    return f"{len(answers)} answers meanwhile (longest {max(answers):.1f} s); READY after {ready_s:.1f} s"


def _child(site: Site) -> psutil.Process:
    child = site.server.child(INDEX_CHILD)
    if child is None:
        raise NotRecovered("the index's process does not run")
    return child


async def _damaged(site: Site, damage: Callable[[Path], None]) -> str:
    await site.server.start()
    async with site.client() as client:
        await site.begin(client)
    await site.server.stop()
    files = [path for path in sorted((site.server.data_dir / "index").rglob("*")) if path.is_file()]
    for path in files:
        damage(path)
    await site.server.start()
    started = time.perf_counter()
    async with site.client() as client:
        await site.answers(client)
        await index_ready(client, NAMESPACE)
    return f"{len(files)} files; answered at once, READY {time.perf_counter() - started:.1f} s after the start"


def _halve(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
