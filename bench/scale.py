"""`python -m bench scale`: what grows with the number of memories, and what does not.

Memories come through the real path: a client process streams them with their embeddings (384 numbers) to a
real server with scripted models and Milvus Lite, which stores, places, evolves and indexes them. Each size grows on
a copy of the directory of the size before it. At each size the server is asked, stopped, started again, and looked
at. With `--root` the directories stay, and a later run measures those that are there without growing them again.

Goals (design, section 8): two-stage retrieval p50 at a million memories at most twice that at a thousand; a
server that answers within 2 s of its start whatever the size.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from clag.v1 import admin_service_pb2 as admin_pb
from clag.v1 import memory_service_pb2 as pb
from clag_client import AsyncClient, ClagError

from bench.scale_data import DIM, SESSION, Question, questions
from bench.scale_load import NAMESPACE
from bench.scale_report import Row, write
from bench.server import in_process
from bench.store_support import Knobs, StoreServer, index_ready, kept_on_failure, settled

QUESTIONS = 150
WARM_UP = 20
_HOURS_S = 12 * 3600.0
_LONGEST_S = 45.0
_FEWEST = 10
_SLOW_S = 1.0
_POLL_S = 1.0
"""Statistics walk the data directory for its size: asked often they would be measured too."""
_GROWTH = "growth.json"

_ORGANIZED = (admin_pb.STAGE_EMBED, admin_pb.STAGE_ROUTE, admin_pb.STAGE_EVOLVE)


async def main(*, quick: bool, sizes: Sequence[int] = (), root: Path | None = None, evolve: bool = True) -> int:
    """Measure all sizes, print and write the table and the plot; returns the exit code.

    Args:
        quick: Two small sizes, nothing written.
        sizes: Numbers of memories.
        root: Where the data directory grows; a temporary one when None.
        evolve: Whether memories are annotated and linked. Without it they are stored, placed in episodes and
            clusters, and indexed.
    """
    chosen = [1_000, 3_000] if quick else sorted(sizes) or [1_000, 10_000, 100_000]
    wrong = [size for size in chosen if size % SESSION]
    if wrong:
        raise SystemExit(f"sizes must be multiples of {SESSION}: {wrong}")
    rows: list[Row] = []
    with kept_on_failure("scale") as temporary:
        settings = {} if evolve else {"organize.evolve_batch": "0"}
        before: Path | None = None
        for target in chosen:
            folder = (root or temporary) / str(target)
            server = StoreServer(folder, settings, knobs=Knobs(dim=DIM))
            try:
                growth = known_growth(folder)
                if growth is None:
                    copied(before, folder)
                    growth = await grow(server, 0 if before is None else int(before.name), target, evolve=evolve)
                    (folder / _GROWTH).write_text(json.dumps(asdict(growth)), "utf-8")
                rows.append(await measured(server, target, growth))
            finally:
                await server.close()
            print(rows[-1].line(), flush=True)
            before = folder
    if not quick:
        write(rows)
    first, last = rows[0], rows[-1]
    print(
        f"scale_two_stage_p50_ratio: {last.two_stage_ms[0] / first.two_stage_ms[0]:.2f} "
        f"({last.size:,} against {first.size:,} memories; goal at most 2)"
    )
    print(f"scale_open_s: {max(row.answer_s for row in rows):.2f} (start to first answer; goal under 2)")
    return 0


@dataclass(frozen=True, slots=True)
class Growth:
    """Memories a second while the directory grew: durable, searchable, organized; None where that is not known."""

    stored: float | None
    searchable: float | None
    organized: float | None


def known_growth(folder: Path) -> Growth | None:
    """How a directory grew to its size in an earlier run; None where it did not, or not to the end."""
    try:
        return Growth(**json.loads((folder / _GROWTH).read_text("utf-8")))
    except FileNotFoundError:
        return None


def copied(before: Path | None, folder: Path) -> None:
    """Begin a directory with the data of a smaller one, or with nothing."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if before is not None:
        shutil.copytree(before / "data", folder / "data", ignore=shutil.ignore_patterns("*.sock", "*.lock"))


async def grow(server: StoreServer, size: int, target: int, *, evolve: bool) -> Growth:
    """Grow from `size` to `target` memories, until the index has them all; the server is stopped then."""
    await server.start()
    async with server.client() as client:
        started = time.perf_counter()
        stored_s = float(await in_process("bench.scale_load", [server.address, str(size), str(target)]))
        await settled(client, NAMESPACE, (admin_pb.STAGE_EMBED,), _HOURS_S, poll_s=_POLL_S)
        searchable_s = time.perf_counter() - started
        organized_s = None
        if evolve:
            await settled(client, NAMESPACE, _ORGANIZED, _HOURS_S, poll_s=_POLL_S)
            organized_s = time.perf_counter() - started
        await index_ready(client, NAMESPACE, _HOURS_S)
    await server.stop()
    added = target - size
    return Growth(added / stored_s, added / searchable_s, None if organized_s is None else added / organized_s)


async def measured(server: StoreServer, target: int, growth: Growth) -> Row:
    """Measure a directory of `target` memories."""
    asked = questions(QUESTIONS, target)
    disk = disk_mib(server)
    serving_s, answer_s, ready_s = await opened(server, asked[0])
    async with server.client() as client:
        stats = await index_ready(client, NAMESPACE, _HOURS_S)
        two_stage = await timed(client, asked, pb.RETRIEVAL_MODE_TWO_STAGE)
        everywhere = await timed(client, asked, pb.RETRIEVAL_MODE_GLOBAL)
        busy_mib = server.rss_mib()
    await server.stop()
    return Row(
        size=target,
        clusters=stats.clusters,
        episodes=stats.episodes,
        stored_rate=growth.stored,
        searchable_rate=growth.searchable,
        organized_rate=growth.organized,
        two_stage_ms=two_stage,
        global_ms=everywhere,
        server_mib=busy_mib[0],
        children_mib=busy_mib[1],
        serving_s=serving_s,
        answer_s=answer_s,
        ready_s=ready_s,
        catalog_mib=disk[0],
        index_mib=disk[1],
    )


async def opened(server: StoreServer, question: Question) -> tuple[float, float, float]:
    """Start the server; seconds until it serves, until it has answered a question, until the index is READY."""
    started = time.perf_counter()
    await server.spawn()
    await server.serving()
    serving_s = time.perf_counter() - started
    async with server.client() as client:
        await ask(client, question, pb.RETRIEVAL_MODE_TWO_STAGE)
        answer_s = time.perf_counter() - started
        await index_ready(client, NAMESPACE, _HOURS_S)
    return serving_s, answer_s, time.perf_counter() - started


async def ask(client: AsyncClient, question: Question, mode: pb.RetrievalMode.ValueType) -> None:
    """Retrieve to the end; raises when nothing was found or a part was missing."""
    request = pb.RetrieveRequest(
        namespace=NAMESPACE,
        query=pb.Query(text=question.text, embedding=question.vector),
        mode=mode,
        slm_use=pb.SLM_USE_NEVER,
    )
    hits = 0
    async for stage in client.memory.Retrieve(request, timeout=120):
        hits += len(stage.memories.hits)
        if stage.done.degraded:
            raise RuntimeError(f"a degraded answer: {stage.done.degraded[0].detail}")
    if not hits:
        raise RuntimeError("a question found nothing")


async def timed(
    client: AsyncClient, asked: Sequence[Question], mode: pb.RetrievalMode.ValueType
) -> tuple[float, float]:
    """p50 and p99 in milliseconds over the questions, one after the other, after a warm-up.

    Where answers take seconds, over fewer of them.
    """

    async def one(question: Question) -> float:
        started = time.perf_counter()
        await _patient(lambda: ask(client, question, mode))
        return time.perf_counter() - started

    for question in asked[:WARM_UP]:
        if await one(question) > _SLOW_S:
            break
    seconds: list[float] = []
    for question in asked:
        if len(seconds) >= _FEWEST and sum(seconds) > _LONGEST_S:
            break
        seconds.append(await one(question))
    p50, p99 = np.percentile(seconds, [50, 99]) * 1000
    return float(p50), float(p99)


async def _patient(call: Callable[[], Awaitable[None]]) -> None:
    try:
        await call()
    except ClagError as error:
        raise RuntimeError(f"a question failed: {error}") from error


def disk_mib(server: StoreServer) -> tuple[float, float]:
    """Size of the catalog (with its log) and of the index on disk, in MiB."""
    catalog = sum(path.stat().st_size for path in server.data_dir.glob("catalog.db*"))
    index = sum(path.stat().st_size for path in (server.data_dir / "index").rglob("*") if path.is_file())
    return catalog / 2**20, index / 2**20
