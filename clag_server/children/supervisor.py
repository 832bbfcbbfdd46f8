"""The server's side of a child process: start, readiness, restart with back-off, stop.

One task per child owns the whole cycle, so states never race: it starts the process, waits for "ready" on the
life line, waits for the end, sleeps, and starts again. Children are spawned with a fresh interpreter, never
forked, and lead their own session, so that Ctrl-C in a terminal reaches only the server, which drains first.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from clag_server.children.child_io import LineMessage, read_messages
from clag_server.children.spawn import Launch, Running, signal_group, spawn
from clag_server.children.state import (
    ChildFailedError,
    ChildNotReadyError,
    ChildState,
    ChildStatus,
    RestartPolicy,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

__all__ = ["Launch", "ReadyInfo", "SupervisedProcess"]

_log = structlog.get_logger("clag.children")

_OUTPUT_DRAIN_S = 1.0

ReadyInfo = dict[str, object]
"""What the child said when it became ready: a flat JSON object."""


class SupervisedProcess:
    """A child process that is kept running.

    Args:
        name: Short name for logs and status, such as `model worker`.
        module: Module that the child runs as `__main__`; it calls `lifeline.ready()` when it serves.
        args: Constant command-line arguments of the module.
        env: Variables added to the inherited environment.
        on_launch: Called before every start; gives arguments and sockets of that start.
        on_ready: Awaited after the child's ready message and before READY, with what the child said. An
            OSError, TimeoutError, ValueError or ChildNotReadyError from it counts as a failed start; any other
            exception is a fault of the caller and makes the child FAILED.
        on_change: Called with every new status, in order, on the event loop.
        ready_timeout_s: A child that is not ready after this time is killed and started again.
        stop_grace_s: Time between the polite signal (SIGTERM) and the kill.
        policy: Delays between starts.
        sleep: Replaces `asyncio.sleep` between starts (tests).
        rng: Source of the jitter (tests).
    """

    def __init__(
        self,
        name: str,
        module: str,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        *,
        on_launch: Callable[[], Launch] | None = None,
        on_ready: Callable[[ReadyInfo], Awaitable[None]] | None = None,
        on_change: Callable[[ChildStatus], None] | None = None,
        ready_timeout_s: float = 60.0,
        stop_grace_s: float = 5.0,
        policy: RestartPolicy | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.name = name
        self._module = module
        self._args = tuple(args)
        self._env = dict(env or {})
        self._on_launch = on_launch
        self._on_ready = on_ready
        self._on_change = on_change
        self._ready_timeout_s = ready_timeout_s
        self._stop_grace_s = stop_grace_s
        self._policy = policy or RestartPolicy()
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._status = ChildStatus(name, ChildState.STOPPED, "not started")
        self._watchers: set[asyncio.Queue[ChildStatus]] = set()
        self._task: asyncio.Task[None] | None = None
        self._running: Running | None = None
        self._stopping = False

    @property
    def status(self) -> ChildStatus:
        """The newest status."""
        return self._status

    @property
    def last_output(self) -> tuple[str, ...]:
        """The last lines that the running (or last) child wrote, oldest first."""
        return self._running.tail.lines if self._running else ()

    async def start(self) -> None:
        """Begin to keep the child running; returns at once. Does nothing when it is already kept."""
        if self._task is not None and not self._task.done():
            return
        self._stopping = False
        self._set(ChildState.STARTING, pid=None, restarts=0)
        self._task = asyncio.create_task(self._supervise(), name=f"supervise {self.name}")

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until the child is READY, across restarts.

        Args:
            timeout_s: Longest wait in seconds; None waits as long as it takes.

        Raises:
            ChildFailedError: The child is FAILED or STOPPED.
            ChildNotReadyError: It was not ready in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                async for status in self.changes():
                    if status.state is ChildState.READY:
                        return
                    if status.state in (ChildState.FAILED, ChildState.STOPPED):
                        raise ChildFailedError(status)
        except TimeoutError:
            raise ChildNotReadyError(self._status, timeout_s or 0.0) from None

    async def changes(self) -> AsyncIterator[ChildStatus]:
        """Yield the present status, then every change. Ends only with the caller."""
        queue: asyncio.Queue[ChildStatus] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            yield self._status
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)

    async def restart(self, reason: str) -> None:
        """Kill the running process (it hangs, say); it is started again with the usual back-off.

        Args:
            reason: What the status and the log give as the reason.
        """
        running = self._running
        if running is None or running.process.returncode is not None:
            return
        running.asked_reason = reason
        signal_group(running.process, signal.SIGKILL)
        await running.process.wait()

    async def stop(self) -> None:
        """Stop the child: polite signal, grace time, kill. Safe to call twice and in every state."""
        self._stopping = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            # The task's own clean-up ends the process, see `_supervise`.
            await asyncio.gather(task, return_exceptions=True)
        self._set(ChildState.STOPPED, reason="stopped on request", pid=None)

    async def _supervise(self) -> None:
        try:
            await self._keep_running()
        except Exception as error:
            # A fault of ours or of a callback: the child must not look alive while nobody keeps it.
            self._fail(f"no longer supervised: {error!r}")
            raise

    async def _keep_running(self) -> None:
        failures = 0
        while True:
            self._set(ChildState.STARTING, pid=None)
            reason = await self._run_once()
            running = self._running
            if running is not None and running.fatal is not None:
                self._fail(running.fatal)
                return
            healthy_s = self._healthy_for_s(running)
            failures = 1 if healthy_s >= self._policy.healthy_after_s else failures + 1
            if self._policy.max_failures is not None and failures >= self._policy.max_failures:
                self._fail(f"{reason} ({failures} failures in a row)")
                return
            delay_s = self._policy.delay_s(failures, self._rng)
            self._set(ChildState.BACKOFF, reason=reason, pid=None, retry_after_s=delay_s)
            _log.warning("child ended", child=self.name, reason=reason, retry_after_s=round(delay_s, 3))
            await self._sleep(delay_s)
            self._status = replace(self._status, restarts=self._status.restarts + 1)

    def _healthy_for_s(self, running: Running | None) -> float:
        if running is None or running.ready_s is None:
            return 0.0
        return time.monotonic() - running.ready_s

    async def _run_once(self) -> str:
        """Run one process from start to end and return why it ended."""
        try:
            running = await self._spawn_or_clean_up()
        except OSError as error:
            self._running = None
            return f"cannot start: {error}"
        self._running = running
        self._set(ChildState.STARTING, pid=running.process.pid)
        try:
            reason = await self._until_ready(running)
            if reason is None:
                await self._until_end(running)
                reason = self._describe_end(running)
            return running.asked_reason or reason
        finally:
            await self._end(running)

    async def _spawn_or_clean_up(self) -> Running:
        launch = self._on_launch() if self._on_launch else Launch()
        # A stop in the middle of a start must not leave a process that nobody holds.
        spawning = asyncio.create_task(
            spawn(self.name, self._module, self._args, self._env, launch), name=f"spawn {self.name}"
        )
        try:
            return await asyncio.shield(spawning)
        except asyncio.CancelledError:
            await self._end(await spawning)
            raise

    async def _until_ready(self, running: Running) -> str | None:
        """Return None when the child is ready, else why it is not."""
        try:
            async with asyncio.timeout(self._ready_timeout_s):
                async for message in read_messages(running.line):
                    if message.fatal is not None:
                        running.fatal = message.fatal
                        return message.fatal
                    if message.progress is not None:
                        self._set(ChildState.STARTING, reason=message.progress, pid=running.process.pid)
                        continue
                    return await self._became_ready(running, message)
                await running.process.wait()
        except TimeoutError:
            return f"not ready after {self._ready_timeout_s:g} s"
        return self._describe_end(running)

    async def _became_ready(self, running: Running, message: LineMessage) -> str | None:
        if self._on_ready is not None:
            try:
                await self._on_ready(message.ready)
            except (OSError, ValueError, ChildNotReadyError) as error:  # TimeoutError is an OSError
                return f"started but not usable: {error}"
        running.ready_s = time.monotonic()
        self._set(ChildState.READY, pid=running.process.pid)
        took_s = round(running.ready_s - running.started_s, 3)
        _log.info("child ready", child=self.name, pid=running.process.pid, took_s=took_s)
        return None

    async def _until_end(self, running: Running) -> None:
        async for message in read_messages(running.line):
            if message.fatal is not None:
                running.fatal = message.fatal
        await running.process.wait()

    def _describe_end(self, running: Running) -> str:
        code = running.process.returncode
        if code is None:
            return "closed its life line"
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        last = running.tail.lines[-1:] or ("no output",)
        return f"{how} ({last[0][:300]})"

    async def _end(self, running: Running) -> None:
        """End the process, whatever state it is in, and read the rest of its output."""
        if running.process.returncode is None and self._stopping:
            signal_group(running.process, signal.SIGTERM)
            try:
                async with asyncio.timeout(self._stop_grace_s):
                    await running.process.wait()
            except TimeoutError:
                _log.warning("child ignored the stop signal", child=self.name, pid=running.process.pid)
        # Also for a process that ended by itself: its own children must not outlive it.
        signal_group(running.process, signal.SIGKILL)
        await running.process.wait()
        running.line_writer.close()
        # Ends at once when every writer of the pipe is gone; a grandchild that left the group may hold it.
        await asyncio.wait([running.output], timeout=_OUTPUT_DRAIN_S)
        running.output.cancel()

    def _fail(self, reason: str) -> None:
        self._set(ChildState.FAILED, reason=reason, pid=None)
        _log.error("child given up", child=self.name, reason=reason, output=self.last_output[-20:])

    def _set(
        self,
        state: ChildState,
        *,
        reason: str = "",
        pid: int | None,
        restarts: int | None = None,
        retry_after_s: float = 0.0,
    ) -> None:
        count = self._status.restarts if restarts is None else restarts
        status = ChildStatus(self.name, state, reason, pid, count, retry_after_s)
        if status == self._status:
            return
        self._status = status
        for queue in self._watchers:
            queue.put_nowait(status)
        if self._on_change is not None:
            self._on_change(status)
