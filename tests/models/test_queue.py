"""Calls that wait: by priority, aging, alone where they must be; and what is counted of them."""

from __future__ import annotations

import asyncio

from clag_server.models.api import Priority, Usage
from clag_server.models.batching import BatchQueue, Pending
from clag_server.models.errors import (
    ModelRequestRefusedError,
    ModelTimeoutError,
    ModelUnavailableError,
    UnusableCause,
    UnusableOutputError,
    WrongShapeError,
)
from clag_server.models.meter import Meter

NOW, LATER, BULK = Priority.INTERACTIVE, Priority.ORGANIZE, Priority.BULK


def call(name: str, priority: Priority, *, at_s: float = 0.0, alone: bool = False) -> Pending[str, str]:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    return Pending(name, 1, priority, None, answer, at_s, suspected=int(alone))


async def test_bulk_calls_are_not_starved_by_calls_that_came_much_later() -> None:
    queue: BatchQueue[str, str] = BatchQueue(budget=1, max_calls=1)
    queue.put(call("old bulk", BULK, at_s=0.0))
    queue.put(call("new bulk", BULK, at_s=95.0))
    queue.put(call("organize", LATER, at_s=100.0))
    queue.put(call("asked", NOW, at_s=101.0))
    assert queue.waiting() == {"interactive": 1, "organize": 1, "bulk": 2}
    assert [queue.take(BULK)[0].question for _ in range(4)] == ["asked", "old bulk", "organize", "new bulk"]


async def test_room_that_is_kept_for_urgent_calls_takes_no_other() -> None:
    queue: BatchQueue[str, str] = BatchQueue(budget=10, max_calls=10)
    queue.put(call("bulk", BULK))
    assert queue.take(NOW) == []
    queue.put(call("asked", NOW))
    assert [one.question for one in queue.take(NOW)] == ["asked"]


async def test_a_suspect_call_gets_a_batch_of_its_own() -> None:
    queue: BatchQueue[str, str] = BatchQueue(budget=10, max_calls=10)
    for name, alone in (("a", False), ("suspect", True), ("b", False), ("c", False)):
        queue.put(call(name, LATER, alone=alone))
    assert [[one.question for one in queue.take(BULK)] for _ in range(3)] == [["a"], ["suspect"], ["b", "c"]]


async def test_calls_of_a_worker_that_ended_go_first_and_suspects_last() -> None:
    queue: BatchQueue[str, str] = BatchQueue(budget=10, max_calls=1)
    queue.put(call("waiting", LATER))
    queue.put_back([call("a", LATER), call("suspect", LATER, alone=True), call("b", LATER)])
    order = [queue.take(BULK)[0].question for _ in range(4)]
    assert order == ["a", "b", "waiting", "suspect"]


def test_counts_say_what_callers_met() -> None:
    now = 1000.0
    meter = Meter(lambda: now)
    for wait_s in range(100):
        meter.answered(Usage(tokens_in=9, tokens_out=3, queue_s=wait_s, batch=4))
    for error in (
        ModelUnavailableError("away"),
        ModelTimeoutError(1.0),
        ModelRequestRefusedError("empty"),
        WrongShapeError("2", "1"),
        UnusableOutputError(UnusableCause.CUT, "end", "{"),
        UnusableOutputError(UnusableCause.CUT, "end", "{"),
    ):
        meter.failed(error)
    counted = meter.snapshot({"bulk": 2}, prefix_hits=5, prefix_misses=1)
    assert (counted.calls, counted.tokens_in, counted.tokens_out) == (100, 900, 300)
    assert counted.failures == {
        "unavailable": 1, "timeout": 1, "refused": 1, "wrong_shape": 1, "unusable_cut": 2,
    }  # fmt: skip
    assert (counted.wait_p50_s, counted.wait_p99_s, counted.batch_mean) == (50, 99, 4)
    assert counted.tokens_per_s == 1200 / 60
    assert (counted.prefix_hits, counted.prefix_misses, counted.waiting) == (5, 1, {"bulk": 2})
    now += 61
    assert meter.snapshot({}).tokens_per_s == 0
