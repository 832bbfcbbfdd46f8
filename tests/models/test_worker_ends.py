"""What callers of the models see when workers die, hang, grow or are too few. No real model here."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clag_server.models.api import (
    ModelRequestRefusedError,
    ModelTimeoutError,
    ModelUnavailableError,
)

if TYPE_CHECKING:
    pass
from tests.models.worker_rig import (
    BULK,
    LATER,
    NOW,
    OPTIONS,
    embed_until_answered,
    loaded_again,
    rig,
    until,
    until_loaded,
)


async def test_when_the_worker_dies_its_work_is_done_by_the_next_one(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        vectors = await r.embedder.embed(["die once"], priority=LATER)
        assert vectors.tolist() == [[8.0, 0.0]]
        assert (r.embedder.status.restarts, r.embedder.status.loads) == (1, 2)
        assert r.embedder.status.metrics.failures == {}


async def test_a_call_that_ends_the_worker_twice_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        for ask in (
            r.embedder.embed(["die"], priority=LATER),
            r.slm.choose("die", OPTIONS, priority=LATER),
            r.slm.generate("die", max_tokens=5, priority=LATER),
        ):
            before = r.slm.status.restarts
            with pytest.raises(ModelRequestRefusedError, match=r"ended on it twice.*SIGKILL"):
                await ask
            await until_loaded(r)
            assert r.slm.status.restarts == before + 2
        before = r.slm.status.restarts
        with pytest.raises(ModelRequestRefusedError):
            await r.slm.generate("die", max_tokens=5, priority=LATER)
        await until_loaded(r)
        assert r.slm.status.restarts == before + 1, "asked again, it is known"


async def test_a_call_in_whose_hands_workers_end_without_its_doing_is_given_up_in_the_end(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        with pytest.raises(ModelUnavailableError):
            await r.embedder.embed(["die aside"], priority=LATER)
        assert r.embedder.status.restarts >= 2


async def test_a_deadline_also_bounds_the_wait_for_the_next_worker(tmp_path: Path) -> None:
    async with rig(tmp_path, slow_restart=True) as r:
        with pytest.raises(ModelTimeoutError):
            await r.embedder.embed(["die once"], priority=NOW, deadline_s=0.3)


async def test_a_worker_that_hangs_is_replaced(tmp_path: Path) -> None:
    async with rig(tmp_path, hang_timeout_s=0.5) as r:
        with pytest.raises(ModelRequestRefusedError, match="no sign of life"):
            await r.slm.generate("silent", grammar=None, max_tokens=5, priority=LATER)
        assert await embed_until_answered(r, "again") == [[5.0, 0.0]]


async def test_a_deep_queue_outlives_the_worker(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.embedder.embed(["warm"], priority=NOW)
        calls = [r.embedder.embed(["die"], priority=NOW)]
        calls += [r.embedder.embed(["z" * 250], priority=BULK) for _ in range(3000)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(answers[0], ModelRequestRefusedError)
        assert not any(isinstance(one, BaseException) for one in answers[1:])


async def test_what_waits_is_failed_when_the_next_worker_does_not_start(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.embedder.embed(["warm"], priority=NOW)
        (tmp_path / "no-start").touch()
        answers = await asyncio.gather(
            *(r.embedder.embed([text], priority=LATER) for text in ("die once", *"abc")), return_exceptions=True
        )
        assert all(isinstance(one, ModelUnavailableError) for one in answers)


async def test_a_stream_ends_with_an_error_when_the_worker_dies(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        pieces = r.slm.stream("die", max_tokens=9, priority=NOW)
        assert await anext(pieces) == "DIE"
        with pytest.raises(ModelUnavailableError):
            await anext(pieces)


async def test_a_worker_that_grows_past_its_limit_is_replaced_with_the_reason(tmp_path: Path) -> None:
    async with rig(tmp_path, limit_mib=500) as r:
        with pytest.raises(ModelRequestRefusedError, match=r"900 MiB, models\.memory_limit_mib is 500"):
            await r.slm.generate("fat", max_tokens=5, priority=LATER)
        status = r.slm.status
        assert status.restarts >= 1
        assert (status.metrics.prefix_hits, status.metrics.prefix_misses) == (3, 2)
        assert status.metrics.failures == {"refused": 1}
        assert await embed_until_answered(r, "again") == [[5.0, 0.0]]


async def test_work_is_shared_among_workers_and_goes_on_when_one_dies(tmp_path: Path) -> None:
    async with rig(tmp_path, workers=2) as r:
        await r.embedder.embed(["warm"], priority=NOW)
        await until(lambda: r.embedder.status.loads == 2)
        bulk = [asyncio.create_task(r.embedder.embed(["slow " + "x" * 90], priority=BULK)) for _ in range(12)]
        await until(lambda: sum("slow " + "x" * 90 in texts for _, _, texts in r.taken()) == 2)
        pid = r.clients[0].child.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        r.release()
        answers = await asyncio.gather(*bulk)
        assert [one[0][0] for one in answers] == [95.0] * 12, "the other one does what it had in hand"
        assert (await r.embedder.embed(["fine"], priority=NOW)).tolist() == [[4.0, 0.0]]


async def test_a_call_that_ends_the_worker_takes_no_other_call_along(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        texts = ["one", "die", "three", "four"]
        answers = await asyncio.gather(
            *(r.embedder.embed([text], priority=LATER) for text in texts), return_exceptions=True
        )
        assert isinstance(answers[1], ModelRequestRefusedError)
        assert [one.tolist()[0][0] for one in answers if not isinstance(one, BaseException)] == [3.0, 5.0, 4.0]
        batches = [batch for name, _, batch in r.taken() if name == "Embed" and len(batch) > 1]
        assert batches == [texts], "only the first time together"


async def test_every_caller_hears_something_when_the_worker_is_killed_again_and_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        ended = asyncio.Event()
        heard: list[object] = []

        async def caller(i: int) -> None:
            while not ended.is_set():
                try:
                    match i % 3:
                        case 0:
                            heard.append(await r.embedder.embed([f"text {i}"], priority=BULK))
                        case 1:
                            heard.append(await r.slm.choose(f"text {i}", OPTIONS, priority=LATER))
                        case _:
                            heard.append(await r.slm.generate(f"text {i}", max_tokens=5, priority=NOW))
                except (ModelUnavailableError, ModelRequestRefusedError) as error:
                    heard.append(error)
                    await asyncio.sleep(0.01)

        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            for i in range(12):
                group.create_task(caller(i))
            for _ in range(20):
                await embed_until_answered(r, "it runs")
                before, pid = r.embedder.status.loads, r.clients[0].child.pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                await until(partial(loaded_again, r, before))
            ended.set()
        assert r.embedder.status.restarts >= 20
        assert sum(not isinstance(one, Exception) for one in heard) > 20
        assert r.embedder.status.queue_depth == r.slm.status.queue_depth == 0
