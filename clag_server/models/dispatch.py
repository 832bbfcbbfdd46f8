"""One queue before any number of workers: batches go to the worker with the least in hand.

A worker holds few batches at a time: it never idles between two of them, and what has not begun can still be
overtaken by urgent calls, dropped by callers that leave, or go to another worker. When a worker ends, what it had
in hand is asked again; the calls of the pass that ran then go one by one, and one that ends a second worker is
refused.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from clag_server.models.api import Priority
from clag_server.models.errors import (
    ModelError,
    ModelRequestRefusedError,
    WorkerEndedError,
    WrongShapeError,
)
from clag_server.models.protocol import FrameError
from clag_server.models.status import EngineState

if TYPE_CHECKING:
    from clag_server.models import protocol
    from clag_server.models.batching import BatchQueue, Pending
    from clag_server.models.client import Answer
    from clag_server.models.lanes import Lane, Lanes

__all__ = ["Dispatcher"]

Q = TypeVar("Q")
A = TypeVar("A")

_SUSPECTS = 4096
"""Questions that are remembered from a pass in which a worker ended."""

_ENDS_OF_A_REQUEST = 2
"""A request that was alone in the pass that ended its second worker is refused (case M6)."""

_MOST_ENDS = 3
"""Workers that may end with a call in hand before it is given up, whoever is at fault."""


class Dispatcher(Generic[Q, A]):
    """Calls of one kind: their queue, and the batches that the workers have.

    Args:
        lanes: The workers.
        queue: Calls that wait.
        frame: Makes the request of a batch, given its id.
        deliver: Checks an answer and hands each call its part; given the batch, the answer, and when the batch
            was sent on the clock of `time.monotonic`.
        in_hand: How many batches a worker may have; interactive batches may go over this by as many again.
        key: What identifies a question, to recognise one that was in hand when a worker ended.
        piece: Takes a piece of a streamed answer; only for batches of one call.
    """

    def __init__(
        self,
        lanes: Lanes,
        queue: BatchQueue[Q, A],
        *,
        frame: Callable[[int, list[Pending[Q, A]]], protocol.Embed | protocol.ChooseBatch | protocol.Generate],
        deliver: Callable[[list[Pending[Q, A]], Answer, float], None],
        in_hand: Callable[[Lane], int],
        key: Callable[[Q], str],
        piece: Callable[[Q, str], None] | None = None,
    ) -> None:
        self._lanes = lanes
        self.queue = queue
        self._frame = frame
        self._deliver = deliver
        self._in_hand = in_hand
        self._key = key
        self._piece = piece
        self._running: Counter[Lane] = Counter()
        self._suspects: OrderedDict[int, int] = OrderedDict()
        self._loads_at_end = 0  # before the first load: a worker that ends then is not waited for
        lanes.watch(self._lane_changed)

    def put(self, calls: list[Pending[Q, A]]) -> None:
        """Queue calls and send what can be sent."""
        for call in calls:
            if self._suspects:
                call.suspected = self._suspects.get(hash(self._key(call.question)), 0)
            self.queue.put(call)
        self.pump()

    def pump(self) -> None:
        """Send batches while workers have room for them."""
        while ready := self._lanes.ready:
            lane = min(ready, key=lambda one: self._running[one])
            running, most = self._running[lane], self._in_hand(lane)
            if running >= 2 * most:
                return
            batch = self.queue.take(Priority.BULK if running < most else Priority.INTERACTIVE)
            if not batch:
                return
            self._send(lane, batch)

    def _lane_changed(self, lane: Lane) -> None:
        if lane.ready:
            self.pump()
            return
        self._running[lane] = 0
        state = self._lanes.state
        if state is EngineState.ABSENT or (state is EngineState.DEGRADED and self._ended_while_loading()):
            self.queue.fail_all(self._lanes.unavailable())

    def _ended_while_loading(self) -> bool:
        """Hear that the last worker ended; say whether none was loaded since the end before.

        Calls wait for one restart. Where that does not bring the model back, waiting longer helps nobody who has
        something else to fall back on.
        """
        again = self._lanes.loads == self._loads_at_end
        self._loads_at_end = self._lanes.loads
        return again

    def _send(self, lane: Lane, batch: list[Pending[Q, A]]) -> None:
        sent_at_s = time.monotonic()
        load = lane.loads
        request_id = lane.client.next_id()

        def done() -> None:
            if lane.loads == load:  # a worker that was replaced has nothing of this one in hand
                self._running[lane] = max(self._running[lane] - 1, 0)

        def answer(got: Answer) -> None:
            done()
            self._acquit(batch)
            try:
                self._deliver(batch, got, sent_at_s)
            except (WrongShapeError, FrameError) as error:
                fault = error if isinstance(error, ModelError) else WrongShapeError("an answer", str(error))
                for call in batch:
                    call.fail(fault)
            self.pump()

        def fail(error: ModelError) -> None:
            done()
            wanted = [call for call in batch if call.wanted]
            if len(wanted) > 1 and lane.ready:
                # The worker is alive and refused the batch: halves find the one call that is at fault, and
                # fit where the whole was too large for the memory.
                middle = len(wanted) // 2
                self._send(lane, wanted[:middle])
                self._send(lane, wanted[middle:])
                return
            if isinstance(error, WorkerEndedError):
                self.queue.put_back([call for call in wanted if self._survives(call, error, len(batch))])
            else:
                for call in wanted:
                    call.fail(error)
            self.pump()

        def left() -> None:
            """The last caller of the batch left: the worker need not go on."""
            if all(call.answer.cancelled() for call in batch) and lane.client.cancel(request_id):
                done()
                self.pump()

        self._running[lane] += 1
        try:
            piece = self._piece_of(batch)
            lane.client.send(self._frame(request_id, batch), answer, fail, piece)
        except ModelError as error:
            fail(error)
            return
        for call in batch:
            call.answer.add_done_callback(lambda _: left())

    def _piece_of(self, batch: list[Pending[Q, A]]) -> Callable[[str], None] | None:
        take = self._piece
        if take is None:
            return None

        def piece(text: str) -> None:
            batch[0].begun = True
            take(batch[0].question, text)

        return piece

    def _survives(self, call: Pending[Q, A], error: WorkerEndedError, shared: int) -> bool:
        """Note that a worker ended with a call in hand; return whether it is asked again, else it has failed.

        Args:
            call: The call.
            error: What the worker's end tells.
            shared: Calls of its batch.
        """
        call.ends += 1
        if error.running:
            proof = call.alone and shared == 1
            call.suspected += 1
            self._remember(call)
            if proof and call.suspected >= _ENDS_OF_A_REQUEST:
                call.fail(ModelRequestRefusedError(f"the model's process ended on it twice: {error.reason}"))
                return False
        if call.begun or call.ends >= _MOST_ENDS or self._lanes.state is EngineState.ABSENT:
            call.fail(error)
            return False
        return True

    def _remember(self, call: Pending[Q, A]) -> None:
        """Keep in mind what was suspected: asked again, by anyone, it goes alone from the start."""
        self._suspects[hash(self._key(call.question))] = call.suspected
        while len(self._suspects) > _SUSPECTS:
            self._suspects.popitem(last=False)

    def _acquit(self, batch: list[Pending[Q, A]]) -> None:
        """Forget the suspicion of calls that were answered."""
        if self._suspects:
            for call in batch:
                self._suspects.pop(hash(self._key(call.question)), None)
