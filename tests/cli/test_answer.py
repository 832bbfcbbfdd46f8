"""`clag answer` when its server fails in the middle: what was written stays readable and is not taken for whole."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from clag.v1 import memory_service_pb2 as pb
from clag.v1.memory_service_pb2_grpc import add_MemoryServiceServicer_to_server

from tests.cli.command import COMMAND, TIMEOUT_S, Ended, clag, environment

WRITTEN = ("The dock ", "is in")


class AnswerDouble:
    """A server that begins to answer and then does what the test says, and nothing else."""

    def __init__(self, then: Callable[[Any], None], pieces: tuple[str, ...] = WRITTEN) -> None:
        self._then = then
        self._pieces = pieces

    def __getattr__(self, _name: str) -> Any:
        return lambda _request, context: context.abort(grpc.StatusCode.UNIMPLEMENTED, "not here")

    def Answer(self, _request: Any, context: Any) -> Iterator[pb.AnswerResponse]:  # noqa: N802
        yield pb.AnswerResponse(memories=pb.MemoryHits())
        for piece in self._pieces:
            yield pb.AnswerResponse(delta=pb.AnswerDelta(text=piece))
        self._then(context)


@contextmanager
def serving(double: AnswerDouble, folder: Path) -> Iterator[Path]:
    server = grpc.server(ThreadPoolExecutor(2))
    add_MemoryServiceServicer_to_server(double, server)  # type: ignore[arg-type]  # has its methods
    socket = folder / "s"
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield socket
    finally:
        server.stop(None).wait()


def asked(then: Callable[[Any], None], folder: Path, *more: str, pieces: tuple[str, ...] = WRITTEN) -> Ended:
    with serving(AnswerDouble(then, pieces), folder) as socket:
        return clag("answer", "Where is the dock?", "--socket", socket, *more, home=folder)


def fails(context: Any) -> None:
    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the language model has no room")


def vanishes(context: Any) -> None:
    context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")


def stops(_context: Any) -> None:
    """End the stream as if all were well, without the frame that says so."""


@pytest.mark.parametrize(
    ("then", "code", "why"),
    [
        (fails, 4, "the language model has no room"),
        (vanishes, 3, "the server went away"),
        (stops, 4, "the server ended it without saying why"),
    ],
)
def test_an_answer_that_is_cut_ends_its_line_and_says_that_it_is_incomplete(
    then: Callable[[Any], None], code: int, why: str, tmp_path: Path
) -> None:
    done = asked(then, tmp_path)
    assert (done.code, done.out) == (code, "The dock is in\n")
    assert done.error() == f"clag: the answer is incomplete: {why}"


def test_a_line_that_has_ended_is_not_ended_once_more(tmp_path: Path) -> None:
    assert asked(fails, tmp_path, pieces=("One line.\n",)).out == "One line.\n"


def test_a_failure_before_the_first_word_is_no_incomplete_answer(tmp_path: Path) -> None:
    done = asked(fails, tmp_path, pieces=())
    assert (done.code, done.out) == (4, "")
    assert done.error() == "clag: the language model has no room"


@pytest.mark.parametrize("then", [fails, vanishes, stops])
def test_programs_get_no_document_of_an_answer_that_was_cut(then: Callable[[Any], None], tmp_path: Path) -> None:
    done = asked(then, tmp_path, "--json")
    assert done.code in (3, 4)
    assert done.out == ""
    assert done.error().startswith("clag: the answer is incomplete: ")


def test_ctrl_c_in_the_middle_of_an_answer_leaves_its_line_whole(tmp_path: Path) -> None:
    released = threading.Event()

    def waits(_context: Any) -> None:
        released.wait(TIMEOUT_S)

    with serving(AnswerDouble(waits), tmp_path) as socket:
        running = subprocess.Popen(
            [*COMMAND, "answer", "Where is the dock?", "--socket", str(socket)],
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert running.stdout is not None
        written = running.stdout.read(len("The dock is in"))
        running.send_signal(signal.SIGINT)
        rest, err = running.communicate(timeout=TIMEOUT_S)
        released.set()
    assert written + rest == b"The dock is in\n"
    assert running.returncode == 130
    assert err == b"clag: interrupted: the answer is incomplete\n"
