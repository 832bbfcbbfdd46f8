"""The server's end of the model worker: the child process, its socket, and the requests in flight.

Knows frames and states, nothing of batching: `engine` builds the embedder and the language model on it. When
the worker ends or is silent for too long with work in hand, every request in flight hears it, and whether it was
in the pass that ran; the child is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from clag_server.children import ChildState, ChildStatus, Launch, RestartPolicy, SupervisedProcess
from clag_server.models import protocol
from clag_server.models.api import ModelError, ModelRequestRefusedError, ModelUnavailableError
from clag_server.models.errors import WorkerEndedError
from clag_server.models.worker_marks import PassMarks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clag_server.models.worker_settings import WorkerSettings

__all__ = ["ModelListener", "WorkerClient"]

_log = structlog.get_logger("clag.models")

Answer = protocol.Vectors | protocol.Scores | protocol.Text


class ModelListener(Protocol):
    """What one model's engine hears from the worker."""

    def on_loaded(self, loaded: protocol.Loaded) -> None:
        """The model answers now."""

    def on_not_loaded(self, reason: str) -> None:
        """The model cannot be loaded; it is absent until the settings change."""

    def on_progress(self, step: str) -> None:
        """The model is being loaded; this is what is done now."""

    def on_worker(self, status: ChildStatus) -> None:
        """The worker's state changed."""


@dataclass(slots=True)
class _InFlight:
    priority: int
    answer: Callable[[Answer], None]
    fail: Callable[[ModelError], None]
    piece: Callable[[str], None] | None = None


class WorkerClient:
    """A supervised model worker.

    Attributes:
        beat: The worker's last sign of life: its memory, and what its caches hit.

    Args:
        settings: What the worker loads.
        hang_timeout_s: Silence with work in hand after which the worker is killed.
        load_timeout_s: Time until the first model must be loaded.
        memory_limit_bytes: Resident memory at which the worker is replaced; 0 sets no limit.
        name: For logs and errors.
        module: The worker's module (tests run one that misbehaves).
        env: Variables added to the worker's environment.
        policy: Delays between two starts.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        hang_timeout_s: float = 60.0,
        load_timeout_s: float = 600.0,
        memory_limit_bytes: int = 0,
        name: str = "model worker",
        module: str = "clag_server.models.worker",
        env: Mapping[str, str] | None = None,
        policy: RestartPolicy | None = None,
    ) -> None:
        self._hang_timeout_s = hang_timeout_s
        self._listeners: dict[str, ModelListener] = {}
        self._in_flight: dict[int, _InFlight] = {}
        self._next_id = 0
        self._ours: socket.socket | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reader_task: asyncio.Task[None] | None = None
        self._hang_task: asyncio.Task[None] | None = None
        self._heard_at_s = 0.0
        self._memory_limit_bytes = memory_limit_bytes
        self._ending: asyncio.Task[None] | None = None
        self._marks: PassMarks | None = None
        self.beat = protocol.Beat()
        self._child = SupervisedProcess(
            name,
            module,
            ["--settings", json.dumps(dataclasses.asdict(settings))],
            # Waiting threads must sleep: beside one busy core a spinning team took 2,685 ms a step, this 243 ms.
            env={
                "OMP_WAIT_POLICY": "PASSIVE",
                "TOKENIZERS_PARALLELISM": "true",
                "HF_HUB_OFFLINE": "1",
                **({"OMP_NUM_THREADS": str(settings.threads)} if settings.threads else {}),
                **(env or {}),
            },
            on_launch=self._launch,
            on_ready=self._connect,
            on_change=self._on_change,
            ready_timeout_s=load_timeout_s,
            policy=policy,
        )

    @property
    def child(self) -> ChildStatus:
        """The worker process's status."""
        return self._child.status

    def listen(self, model: str, listener: ModelListener) -> None:
        """Tell `listener` what happens to a model, `embedder` or `slm`."""
        self._listeners[model] = listener

    async def start(self) -> None:
        """Start the worker; returns at once, the models load in the background."""
        self._hang_task = asyncio.create_task(self._watch_for_hangs(), name="model worker hang watch")
        await self._child.start()

    async def stop(self) -> None:
        """Stop the worker and fail what is in flight."""
        await self._child.stop()
        for task in (self._hang_task, self._reader_task, self._ending):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._disconnect(ModelUnavailableError("the model worker is stopped"))
        self._drop_marks()

    async def wait_started(self, timeout_s: float) -> None:
        """Wait until the worker has tried to load its first model.

        Raises:
            ChildFailedError: The worker was given up.
            ChildNotReadyError: It took too long.
        """
        await self._child.wait_ready(timeout_s)

    def next_id(self) -> int:
        """Return a request id that was not used before."""
        self._next_id += 1
        return self._next_id

    def send(
        self,
        frame: protocol.Embed | protocol.ChooseBatch | protocol.Generate,
        answer: Callable[[Answer], None],
        fail: Callable[[ModelError], None],
        piece: Callable[[str], None] | None = None,
    ) -> None:
        """Send a request; exactly one of `answer` and `fail` is called later, on the event loop.

        Neither is called for a request that is cancelled. Pieces of a streamed text go to `piece` before.

        Raises:
            ModelUnavailableError: The worker is not connected.
            ModelRequestRefusedError: The request cannot be sent (not valid Unicode, too large).
        """
        if self._writer is None:
            raise self.unavailable()
        try:
            data = protocol.encode(frame)
        except protocol.FrameError as error:
            raise ModelRequestRefusedError(str(error)) from error
        if not self._in_flight:
            self._heard_at_s = time.monotonic()
        self._in_flight[frame.id] = _InFlight(frame.priority, answer, fail, piece)
        self._writer.write(data)

    def cancel(self, request_id: int) -> bool:
        """Tell the worker that nobody waits for a request any more; False when it is answered already."""
        waiting = self._in_flight.pop(request_id, None)
        if waiting is not None and self._writer is not None:
            self._writer.write(protocol.encode(protocol.Cancel(request_id, waiting.priority)))
        return waiting is not None

    def unavailable(self) -> ModelUnavailableError:
        """Return the error that says why the worker does not answer."""
        status = self._child.status
        detail = f": {status.reason}" if status.reason else ""
        if status.state is ChildState.READY:
            detail = ": its connection is being closed"
        retry_s = status.retry_after_s + 5.0 if status.state is not ChildState.FAILED else None
        return ModelUnavailableError(f"the model worker is {status.state.value}{detail}", retry_s)

    def _launch(self) -> Launch:
        if self._ours is not None:
            self._ours.close()
        self._ours, theirs = socket.socketpair()
        self._drop_marks()
        self._marks = PassMarks.create()
        return Launch(args=["--fd", str(theirs.fileno()), "--marks", str(self._marks.path)], inherit=[theirs])

    def _drop_marks(self) -> None:
        if self._marks is not None:
            self._marks.close()
            self._marks = None

    async def _connect(self, _: dict[str, object]) -> None:
        if self._ours is None:
            raise ConnectionError("the worker has no socket")
        if self._marks is not None:
            self._marks.remove_file()  # the worker has mapped it: nothing is left behind, however this ends
        line, self._ours = self._ours, None
        reader, self._writer = await asyncio.open_connection(sock=line)
        self._reader_task = asyncio.create_task(self._read(reader), name="model worker frames")

    def _on_change(self, status: ChildStatus) -> None:
        # The engines hear it first: what fails afterwards must not make them send more.
        for listener in self._listeners.values():
            listener.on_worker(status)
        if status.state is not ChildState.READY:
            self._disconnect(self.unavailable(), ended=status.state is ChildState.BACKOFF)

    def _disconnect(self, error: ModelUnavailableError, *, ended: bool = False) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        waiting, self._in_flight = self._in_flight, {}
        running = self._marks.read() if ended and self._marks is not None else frozenset()
        for request_id, one in waiting.items():
            one.fail(WorkerEndedError(error, running=request_id in running) if ended else error)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):  # the worker ended
            while True:
                header = await reader.readexactly(protocol.HEADER_BYTES)
                try:
                    body = await reader.readexactly(protocol.frame_length(header))
                    self._heard_at_s = time.monotonic()
                    self._handle(protocol.decode(body))
                except protocol.FrameError as error:
                    await self._child.restart(f"sent {error}")
                    return

    def _handle(self, frame: protocol.Frame) -> None:
        match frame:
            case protocol.Loaded():
                _log.info("model loaded", model=frame.model, device=frame.device, dtype=frame.dtype,
                          took_s=round(frame.load_s, 2))  # fmt: skip
                if frame.model in self._listeners:
                    self._listeners[frame.model].on_loaded(frame)
            case protocol.NotLoaded():
                _log.error("model not loaded", model=frame.model, reason=frame.reason)
                if frame.model in self._listeners:
                    self._listeners[frame.model].on_not_loaded(frame.reason)
            case protocol.Vectors() | protocol.Scores() | protocol.Text():
                waiting = self._in_flight.pop(frame.id, None)
                if waiting is not None:
                    waiting.answer(frame)
            case protocol.Failed():
                waiting = self._in_flight.pop(frame.id, None)
                if waiting is not None:
                    waiting.fail(
                        ModelRequestRefusedError(frame.reason)
                        if frame.refused
                        else ModelUnavailableError(frame.reason, 1.0)
                    )
            case protocol.Piece():
                waiting = self._in_flight.get(frame.id)
                if waiting is not None and waiting.piece is not None:
                    waiting.piece(frame.text)
            case protocol.Progress():
                if frame.model in self._listeners:
                    self._listeners[frame.model].on_progress(frame.step)
            case protocol.Beat():
                self._note_beat(frame)
            case _:
                raise protocol.FrameError(f"a request frame: {type(frame).__name__}")

    def _note_beat(self, beat: protocol.Beat) -> None:
        self.beat = beat
        limit = self._memory_limit_bytes
        ending = self._ending is not None and not self._ending.done()
        if limit and beat.rss_bytes > limit and not ending:
            reason = f"it used {beat.rss_bytes >> 20} MiB, models.memory_limit_mib is {limit >> 20}"
            self._ending = asyncio.create_task(self._child.restart(reason), name="end the model worker")

    async def _watch_for_hangs(self) -> None:
        while True:
            await asyncio.sleep(self._hang_timeout_s / 4)
            silent_s = time.monotonic() - self._heard_at_s
            if self._in_flight and silent_s > self._hang_timeout_s:
                await self._child.restart(f"no sign of life for {silent_s:.0f} s with work in hand")
