"""What callers of the models see when the worker answers, misbehaves, or is gone. No real model here."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clag_server.children import RestartPolicy
from clag_server.models.api import (
    ChoiceOption,
    EngineState,
    Generation,
    ModelRequestRefusedError,
    ModelTimeoutError,
    ModelUnavailableError,
    Priority,
    UnusableCause,
    UnusableOutputError,
    WrongShapeError,
)
from clag_server.models.client import WorkerClient
from clag_server.models.schema import Object
from clag_server.models.schema import Text as Bounded
from clag_server.models.worker_embedder import WorkerEmbedder
from clag_server.models.worker_settings import WorkerSettings
from clag_server.models.worker_slm import WorkerSlm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

REPOSITORY = Path(__file__).resolve().parents[2]
NOW, LATER, BULK = Priority.INTERACTIVE, Priority.ORGANIZE, Priority.BULK
OPTIONS = [ChoiceOption("a", "aaa"), ChoiceOption("b", "b")]


@dataclass
class Rig:
    folder: Path
    clients: list[WorkerClient]
    embedder: WorkerEmbedder
    slm: WorkerSlm

    def release(self) -> None:
        (self.folder / "release").touch()

    def taken(self) -> list[tuple[str, int | None, list[str]]]:
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [tuple(json.loads(line)) for line in lines]

    async def until_taken(self, text: str) -> None:
        async with asyncio.timeout(30):
            while not any(text in texts for _, _, texts in self.taken()):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.005)


QUICK = RestartPolicy(first_delay_s=0.01, max_delay_s=0.02)
SLOW = RestartPolicy(first_delay_s=60.0)


@asynccontextmanager
async def rig(
    folder: Path, hang_timeout_s: float = 60.0, workers: int = 1, limit_mib: int = 0, slow_restart: bool = False
) -> AsyncIterator[Rig]:
    settings = WorkerSettings("e", "s", "cpu", "float32", 0, 256, 1, 0, 64, 64, 0, 1, 256, 0, 0)
    clients = [
        WorkerClient(
            settings,
            hang_timeout_s=hang_timeout_s,
            memory_limit_bytes=limit_mib << 20,
            module="tests.models.fake_worker",
            env={"FAKE_WORKER_FOLDER": str(folder), "PYTHONPATH": str(REPOSITORY)},
            policy=SLOW if slow_restart else QUICK,
        )
        for _ in range(workers)
    ]
    embedder = WorkerEmbedder(clients, name="e", dim=2, fingerprint="f", window_tokens=256)
    slm = WorkerSlm(clients, name="s")
    for client in clients:
        await client.start()
    try:
        yield Rig(folder, clients, embedder, slm)
    finally:
        for client in clients:
            await client.stop()


async def test_each_text_gets_its_own_vector_in_the_order_of_the_call(tmp_path: Path) -> None:
    texts = ["x" * n for n in (30, 1, 200, 7, 90, 2, 150)]
    async with rig(tmp_path) as r:
        vectors = await r.embedder.embed(texts, priority=BULK)
        assert vectors.shape == (7, 2)
        assert [int(row[0]) for row in vectors] == [30, 1, 200, 7, 90, 2, 150]
        assert r.embedder.status.state is EngineState.READY
        assert (await r.embedder.embed([], priority=NOW)).shape == (0, 2)


@pytest.mark.parametrize("bad", ["short", "nan"])
async def test_an_answer_that_does_not_fit_is_caught_and_no_text_gets_another_ones_vector(
    tmp_path: Path, bad: str
) -> None:
    async with rig(tmp_path) as r:
        with pytest.raises(WrongShapeError):
            await r.embedder.embed(["one", bad, "three"], priority=NOW)
        assert (await r.embedder.embed(["fine"], priority=NOW)).tolist() == [[4.0, 0.0]]


async def test_a_call_with_too_few_scores_fails_alone_in_its_batch(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        good, bad = await asyncio.gather(
            r.slm.choose("enough scores", OPTIONS, priority=LATER),
            r.slm.choose("few scores", OPTIONS, priority=LATER),
            return_exceptions=True,
        )
        assert not isinstance(good, BaseException)
        assert good.scores == (-3.0, -1.0)
        assert isinstance(bad, WrongShapeError)


async def test_half_of_many_answers_lack_a_field_and_the_others_keep_their_own(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        prompts = [json.dumps({"AB"[i % 2]: f"NOTE {i}"}) for i in range(32)]  # the worker answers in capitals
        shape = Object((("A", Bounded(1, 20)),))
        answers = await asyncio.gather(
            *(r.slm.generate(one, schema=shape, max_tokens=50, priority=LATER) for one in prompts),
            return_exceptions=True,
        )
        for i, answer in enumerate(answers):
            if i % 2:
                assert isinstance(answer, UnusableOutputError)
                assert answer.cause is UnusableCause.WRONG_FIELDS
            else:
                assert isinstance(answer, Generation)
                assert answer.value == {"A": f"NOTE {i}"}
        assert r.slm.status.metrics.failures == {"unusable_wrong_fields": 16}


async def test_a_query_overtakes_bulk_work_that_has_not_begun(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        bulk = asyncio.create_task(r.embedder.embed(["slow " + "x" * 90] * 20, priority=BULK))
        await r.until_taken("slow " + "x" * 90)
        query = asyncio.create_task(r.embedder.embed(["query"], priority=NOW))
        await asyncio.sleep(0)
        r.release()
        await query
        await bulk
        order = [priority for name, priority, _ in r.taken() if name == "Embed"]
        assert len(order) > 5, "bulk work is cut into small batches"
        assert order.index(int(NOW)) <= 2, "only what was in the worker already goes first"


async def test_a_caller_that_leaves_frees_its_place_in_the_queue(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        first = asyncio.create_task(r.embedder.embed(["slow " + "x" * 90] * 3, priority=BULK))
        await r.until_taken("slow " + "x" * 90)
        leaver = asyncio.create_task(r.embedder.embed(["y" * 250] * 50, priority=BULK))
        await asyncio.sleep(0)
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
        r.release()
        await first
        await r.embedder.embed(["after"], priority=BULK)
        assert not any("y" * 250 in texts for _, _, texts in r.taken())
        assert r.embedder.status.queue_depth == 0


async def test_a_deadline_that_passes_in_the_queue_is_an_error_of_its_own(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        with pytest.raises(ModelTimeoutError):
            await r.embedder.embed(["while it loads"], priority=NOW, deadline_s=0.01)
        await r.embedder.embed(["loaded"], priority=NOW)
        with pytest.raises(ModelTimeoutError):
            await r.embedder.embed(["slow"], priority=NOW, deadline_s=0.2)
        with pytest.raises(ModelTimeoutError):
            await r.slm.generate("slow", grammar=None, max_tokens=5, priority=NOW, deadline_s=0.2)
        r.release()
        await r.embedder.embed(["fine"], priority=NOW)
        assert "Cancel" in [name for name, _, _ in r.taken()], "the worker is told that nobody waits"


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


async def test_a_model_that_cannot_be_loaded_is_absent_and_the_other_one_answers(tmp_path: Path) -> None:
    (tmp_path / "no-slm").touch()
    async with rig(tmp_path) as r:
        with pytest.raises(ModelUnavailableError, match="no such layer"):
            await r.slm.choose("text", OPTIONS, priority=NOW)
        with pytest.raises(ModelUnavailableError, match="no such layer"):
            await r.slm.generate("text", grammar=None, max_tokens=5, priority=NOW)
        assert r.slm.status.state is EngineState.ABSENT
        assert (await r.embedder.embed(["fine"], priority=NOW)).shape == (1, 2)


async def test_requests_at_fault_are_refused_with_the_reason(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        for text, options in [(" ", OPTIONS), ("text", []), ("text", [ChoiceOption("a", " ")])]:
            with pytest.raises(ModelRequestRefusedError):
                await r.slm.choose(text, options, priority=NOW)
        with pytest.raises(ModelRequestRefusedError, match="character 4"):
            await r.embedder.embed(["arm \ud83d stuck"], priority=NOW)
        with pytest.raises(ModelRequestRefusedError):
            await r.slm.generate("refuse", grammar=None, max_tokens=5, priority=NOW)
        with pytest.raises(ModelUnavailableError):
            await r.slm.generate("fail", grammar=None, max_tokens=5, priority=NOW)
        assert (await r.slm.generate("fine", grammar=None, max_tokens=5, priority=NOW)).text == "FINE"


async def test_a_call_that_the_model_cannot_bear_fails_alone(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        texts = ["one", "two", "fail", "four", "five", "six"]
        answers = await asyncio.gather(
            *(r.embedder.embed([text], priority=BULK) for text in texts), return_exceptions=True
        )
        faults = [isinstance(one, ModelUnavailableError) for one in answers]
        assert faults == [text == "fail" for text in texts]
        batches = [texts for name, _, texts in r.taken() if name == "Embed"]
        assert len(batches[0]) == 6, "they were asked together first"


async def test_stopping_fails_what_is_in_flight(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        waiting = asyncio.create_task(r.embedder.embed(["silent"], priority=LATER))
        await r.until_taken("silent")
        await r.clients[0].stop()
        with pytest.raises(ModelUnavailableError):
            await waiting


async def test_a_stream_gives_its_pieces_and_ends(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        pieces = [one async for one in r.slm.stream("tell me more", max_tokens=9, priority=NOW)]
        assert pieces == ["TELL ", "ME ", "MORE"]
        with pytest.raises(ModelRequestRefusedError):
            await anext(aiter(r.slm.stream(" ", max_tokens=9, priority=NOW)))


async def test_a_stream_that_is_left_is_cancelled_in_the_worker(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        async with aclosing(r.slm.stream("slow silent", max_tokens=9, priority=NOW)) as pieces:
            assert await anext(pieces) == "SLOW "
        r.release()
        await r.embedder.embed(["after"], priority=BULK)
        assert "Cancel" in [name for name, _, _ in r.taken()]


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


def loaded_again(r: Rig, before: int) -> bool:
    return r.embedder.status.loads > before


async def until(true: Callable[[], bool]) -> None:
    """Wait for another process."""
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110 - another process has no event
            await asyncio.sleep(0.005)


async def until_loaded(r: Rig) -> None:
    """Wait until the worker that was started last has loaded its models."""
    await until(lambda: r.slm.status.state is EngineState.READY)


async def embed_until_answered(r: Rig, text: str) -> list[list[float]]:
    """Do what callers do: try again when the error says so."""
    async with asyncio.timeout(30):
        while True:
            try:
                vectors = await r.embedder.embed([text], priority=LATER)
            except ModelUnavailableError:
                await asyncio.sleep(0.05)
            else:
                rows: list[list[float]] = vectors.tolist()
                return rows
