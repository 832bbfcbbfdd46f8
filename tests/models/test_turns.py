"""Whose turn it is in the worker, with a real (tiny) model and no process around it."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from clag_server.models import protocol
from clag_server.models.torch_choose import ChannelScorer
from clag_server.models.torch_generate import Generator
from clag_server.models.worker_link import Request
from clag_server.models.worker_marks import PassMarks
from clag_server.models.worker_turns import Turns
from tests.models.tiny import load, tiny_folder

__all__ = ["tiny_folder"]

HEADS = [("a", "the dock"), ("b", "the kitchen")]
ASKED = protocol.ChooseBatch(1, 0, ["where does it charge"], [HEADS])
LONG = protocol.ChooseBatch(2, 2, ["a long note about the ramp " * 4] * 6, [HEADS] * 6)
TEXT = protocol.Generate(3, 2, "tell me about the ramp", None, 8)


@dataclass
class Line:
    """The worker's end of the socket, without one."""

    requests: queue.PriorityQueue[tuple[int, int, Request]] = field(default_factory=queue.PriorityQueue)
    sent: list[protocol.Frame] = field(default_factory=list)
    beat_due: bool = False

    def ask(self, frame: Request) -> None:
        self.requests.put((frame.priority, self.requests.qsize(), frame))

    def send(self, frame: protocol.Frame) -> None:
        self.sent.append(frame)


@dataclass
class Worker:
    line: Line
    turns: Turns
    before_layer: Callable[[], None] = lambda: None

    def run(self, *frames: Request) -> list[protocol.Frame]:
        """Ask, and take turns until everything is answered."""
        self.line.sent.clear()
        for frame in frames:
            self.line.ask(frame)
        while not self.line.requests.empty() or self.turns.busy:
            self.turns.take_turn()
        return list(self.line.sent)


@pytest.fixture
def worker(tiny_folder: Path) -> Iterator[Worker]:
    model = load(tiny_folder)
    line, marks = Line(), PassMarks.create()
    turns = Turns(line, marks)  # type: ignore[arg-type]
    turns.scorer = ChannelScorer(model, text_tokens=256, head_tokens=64, batch_tokens=4096, cache_bytes=1 << 20)
    turns.generator = Generator(model, slots=4, context_tokens=512, prefill_tokens=128, marked=turns.marks.during)
    worker = Worker(line, turns)
    model.call_before_layers(lambda: worker.before_layer())
    model.call_before_layers(turns.between_layers)
    yield worker
    marks.close()


def once(act: Callable[[], None]) -> Callable[[], None]:
    left = [act]
    return lambda: left.pop()() if left else None


@pytest.mark.parametrize("bulk", [LONG, TEXT], ids=["scores", "a text"])
def test_an_urgent_choice_is_answered_in_the_middle_of_a_long_pass_and_changes_nothing_in_it(
    worker: Worker, bulk: protocol.ChooseBatch | protocol.Generate
) -> None:
    expected = worker.run(ASKED), worker.run(bulk)
    worker.before_layer = once(lambda: worker.line.ask(ASKED))
    answers = worker.run(bulk)
    assert [shown(one) for one in answers] == [shown(one) for one in (*expected[0], *expected[1])]


def test_what_concerns_texts_waits_for_the_end_of_a_pass(worker: Worker) -> None:
    def stop_and_ask_again() -> None:
        worker.line.ask(protocol.Cancel(TEXT.id, TEXT.priority))
        worker.line.ask(protocol.Generate(4, 2, "and about the dock", None, 3))

    worker.before_layer = once(stop_and_ask_again)
    assert [one.id for one in worker.run(TEXT) if isinstance(one, protocol.Text)] == [4]


def test_the_requests_of_the_innermost_pass_are_those_that_are_noted(worker: Worker) -> None:
    noted: list[frozenset[int]] = []

    def note() -> None:
        noted.append(worker.turns.marks.read())

    def ask_and_note() -> None:
        worker.line.ask(ASKED)
        worker.before_layer = note

    worker.before_layer = ask_and_note
    worker.run(LONG)
    assert noted[0] == {ASKED.id}
    assert noted[-1] == {LONG.id}
    assert worker.turns.marks.read() == frozenset()


def shown(frame: protocol.Frame) -> object:
    """What an answer says, without the time that it took."""
    match frame:
        case protocol.Scores():
            return [[round(score, 3) for score in call] for call in frame.scores]
        case protocol.Text():
            return frame.text
    return frame
