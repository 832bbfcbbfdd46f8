"""Whose turn it is in the worker: one forward pass at a time, the most urgent work first.

The order between two passes (DESIGN section 7): frames that arrived are sorted in, cancelled work is dropped, then
a waiting interactive embedding or scoring runs, then generation and other batches take turns. An interactive
embedding or scoring that arrives in the middle of another's pass runs before that pass's next layer.
"""

from __future__ import annotations

import logging
import queue
import time
from typing import TYPE_CHECKING

from clag_server.models import protocol
from clag_server.models.torch_device import is_out_of_memory, release_memory
from clag_server.models.torch_faults import describe
from clag_server.models.torch_generate import RefusedError
from clag_server.models.torch_grammar import GrammarError
from clag_server.models.torch_job import Failed, Finished, Piece
from clag_server.models.worker_memory import resident_bytes
from clag_server.models.worker_tasks import Task, Tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from clag_server.models.torch_choose import ChannelScorer
    from clag_server.models.torch_embedder import TorchEmbedder
    from clag_server.models.torch_generate import Event
    from clag_server.models.torch_generate import Generator as TextGenerator
    from clag_server.models.worker_link import Request, WorkerLink
    from clag_server.models.worker_marks import PassMarks

__all__ = ["Turns"]

_log = logging.getLogger(__name__)  # to the error output, which the server keeps

# What libraries raise for one bad request. Anything else ends the worker, which is restarted.
_REQUEST_FAULTS = (ValueError, RuntimeError, KeyError, IndexError, TypeError, MemoryError)


class Turns:
    """The worker's main loop.

    Attributes:
        marks: Where the requests of the pass that runs are noted.
        embedder: Answers `Embed`; set when it is loaded, as the others.
        scorer: Answers `ChooseBatch`.
        generator: Answers `Generate`.
    """

    def __init__(self, link: WorkerLink, marks: PassMarks) -> None:
        self._link = link
        self.marks = marks
        self._tasks = Tasks()
        self._generation_last = False
        self._urgent = False
        self._lent_s = 0.0
        self._held: list[Request] = []
        self.embedder: TorchEmbedder | None = None
        self.scorer: ChannelScorer | None = None
        self.generator: TextGenerator | None = None

    def run(self) -> None:
        """Serve until the line closes (the reader ends the process)."""
        while True:
            self.take_turn()

    @property
    def busy(self) -> bool:
        """Whether a turn has anything to do before more is asked."""
        return bool(self._tasks or self._held or (self.generator is not None and self.generator.busy))

    def take_turn(self) -> None:
        """Take what was asked, waiting for it where there is nothing else to do, and run one pass."""
        self._take_frames()
        self._turn()
        self._beat()

    def _turn(self) -> None:
        """Run one forward pass of whoever is next."""
        generator = self.generator
        task = self._tasks.next()
        if generator is None or not generator.busy:
            if task is not None:
                self._pass_of(task)
            return
        if task is None:
            self._generate_pass(generator)
        elif self._tasks.interactive and not generator.interactive:
            self._pass_of(task)
        elif self._generation_last:
            self._generation_last = False
            self._pass_of(task)
        else:
            self._generation_last = True
            self._generate_pass(generator)

    def handle(self, frame: Request) -> None:
        """Sort one request in."""
        try:
            match frame:
                case protocol.Cancel():
                    if self.generator is not None:
                        self.generator.cancel(frame.id)
                case protocol.Embed():
                    self._tasks.put(Task(frame.id, frame.priority, self._embed(frame)))
                case protocol.ChooseBatch():
                    self._tasks.put(Task(frame.id, frame.priority, self._choose(frame)))
                case protocol.Generate():
                    with self.marks.during([frame.id]):
                        self._submit(frame)
        except _REQUEST_FAULTS as error:
            self._report(frame.id, error)

    def between_layers(self) -> None:
        """Run interactive embeddings and scorings in the middle of a pass that is not interactive itself."""
        if self._urgent or (self.generator is not None and self.generator.interactive):
            return
        self._take_urgent_frames()
        if not self._tasks.interactive:
            return
        began_s = time.perf_counter()
        while self._tasks.interactive and (task := self._tasks.next()) is not None:
            self._pass_of(task)
            self._beat()
        self._lent_s += time.perf_counter() - began_s

    def _take_urgent_frames(self) -> None:
        """Sort in what may run now; what concerns generations waits for the end of the pass."""
        while not self._link.requests.empty():
            try:
                frame = self._link.requests.get_nowait()[2]
            except queue.Empty:
                return
            if isinstance(frame, (protocol.Embed, protocol.ChooseBatch)):
                self.handle(frame)
            else:
                self._held.append(frame)

    def _take_frames(self) -> None:
        held, self._held = self._held, []
        for frame in held:
            self.handle(frame)
        try:
            self.handle(self._link.requests.get(block=not self.busy)[2])
            while True:
                self.handle(self._link.requests.get_nowait()[2])
        except queue.Empty:
            return

    def _pass_of(self, task: Task) -> None:
        outer, self._urgent = self._urgent, self._urgent or task.priority == 0
        try:
            with self.marks.during([task.id]):
                next(task.passes)
        except StopIteration:
            self._tasks.drop(task)
        except _REQUEST_FAULTS as error:
            self._tasks.drop(task)
            self._report(task.id, error)
        finally:
            self._urgent = outer

    def _embed(self, frame: protocol.Embed) -> Generator[None, None, None]:
        if self.embedder is None:
            self._link.send(protocol.Failed(frame.id, refused=False, reason="there is no embedder"))
            return
        clock = _PassClock(lambda: self._lent_s)
        passes = self.embedder.embed(frame.texts)
        while True:
            try:
                clock.time(passes)
            except StopIteration as end:
                vectors, tokens = end.value
                break
            yield
        rows, dim = vectors.shape
        data = vectors.astype("<f4", copy=False).tobytes()
        self._link.send(protocol.Vectors(frame.id, rows, dim, data, tokens, clock.seconds))

    def _choose(self, frame: protocol.ChooseBatch) -> Generator[None, None, None]:
        if self.scorer is None:
            self._link.send(protocol.Failed(frame.id, refused=False, reason="there is no language model"))
            return
        clock = _PassClock(lambda: self._lent_s)
        passes = self.scorer.score(frame.texts, frame.options)
        while True:
            try:
                clock.time(passes)
            except StopIteration as end:
                calls = end.value
                break
            yield
        self._link.send(
            protocol.Scores(
                frame.id,
                [call.scores for call in calls],
                [call.clipped for call in calls],
                [call.tokens_in for call in calls],
                clock.seconds,
            )
        )

    def _submit(self, frame: protocol.Generate) -> None:
        if self.generator is None:
            self._link.send(protocol.Failed(frame.id, refused=False, reason="there is no language model"))
            return
        self.generator.submit(
            frame.id,
            frame.prompt,
            frame.grammar,
            frame.max_tokens,
            frame.priority,
            streamed=frame.streamed,
            ending=frame.ending,
            alone=frame.alone,
        )

    def _generate_pass(self, generator: TextGenerator) -> None:
        try:
            events = generator.step()
        except _REQUEST_FAULTS as error:
            if is_out_of_memory(error):
                release_memory()
            _log.warning("generation begins again: %s", describe(error), exc_info=True)
            events = generator.start_over(error)
        for event in events:
            self._link.send(_frame_of(event))

    def _report(self, request_id: int, error: Exception) -> None:
        refused = isinstance(error, (RefusedError, GrammarError))
        if is_out_of_memory(error):
            release_memory()
        self._link.send(protocol.Failed(request_id, refused, str(error) if refused else describe(error)))

    def _beat(self) -> None:
        if not self._link.beat_due:
            return
        scorer, generator = self.scorer, self.generator
        hits = (scorer.hits if scorer else 0) + (generator.prefixes.hits if generator else 0)
        misses = (scorer.misses if scorer else 0) + (generator.prefixes.misses if generator else 0)
        self._link.beat(protocol.Beat(resident_bytes(), hits, misses))


class _PassClock:
    """Sums the seconds of one request's own passes.

    Args:
        lent_s: Seconds that passes have given to more urgent ones so far.
    """

    def __init__(self, lent_s: Callable[[], float]) -> None:
        self._lent_s = lent_s
        self.seconds = 0.0

    def time(self, passes: Generator[None, None, object]) -> None:
        started_s, lent_s = time.perf_counter(), self._lent_s()
        try:
            next(passes)
        finally:
            self.seconds += time.perf_counter() - started_s - (self._lent_s() - lent_s)


def _frame_of(event: Event) -> protocol.Frame:
    match event:
        case Piece():
            return protocol.Piece(event.id, event.text)
        case Failed():
            return protocol.Failed(event.id, refused=False, reason=event.reason)
        case Finished():
            return protocol.Text(
                event.id,
                event.text,
                event.finished,
                event.tokens_in,
                event.tokens_out,
                round(event.compute_s, 6),
                round(event.batch, 2),
            )
