"""What callers of the models see when the worker answers, misbehaves, or is gone. No real model here."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clag_server.models.api import (
    ChoiceOption,
    EngineState,
    Generation,
    ModelRequestRefusedError,
    ModelTimeoutError,
    ModelUnavailableError,
    UnusableCause,
    UnusableOutputError,
    WrongShapeError,
)
from clag_server.models.schema import Object
from clag_server.models.schema import Text as Bounded

if TYPE_CHECKING:
    pass
from tests.models.worker_rig import BULK, LATER, NOW, OPTIONS, rig


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
