"""A language's runner: its process, the commands that are sent to it and what it answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeAlias

from tests.conformance.languages import ROOT, Language

__all__ = ["Answer", "Pending", "RunnerFailed", "RunnerMissing", "RunnerProcess"]

Json: TypeAlias = dict[str, Any]

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
_LINE_BYTES = 64 * 1024 * 1024
_TOOL_MISSING = 127
_TOLD_BYTES = 4_000


class RunnerFailed(Exception):
    """The runner ended, or broke the protocol."""


class RunnerMissing(Exception):
    """There is no runner, or its toolchain is not on this machine."""


class Answer:
    """What a command was answered with: `ok` or `error`, and the events before it."""

    def __init__(self, *, ok: Json | None, error: Json | None, events: list[Json]) -> None:
        self.ok = ok
        self.error = error
        self.events = events


class Pending:
    """A command that was sent.

    Attributes:
        number: its id.
        events: what has come of it so far.
    """

    def __init__(self, number: int, operation: str) -> None:
        self.number = number
        self.operation = operation
        self.events: list[Json] = []
        self._ended: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._ended.add_done_callback(
            lambda ended: ended.cancelled() or ended.exception()
        )  # no one may wait for it

    @property
    def done(self) -> bool:
        """Whether it was answered."""
        return self._ended.done()

    async def answer(self, timeout_s: float) -> Answer:
        """Wait for the end.

        Raises:
            RunnerFailed: if the runner ended before, or nothing comes in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._ended)
        except TimeoutError:
            come = f"{len(self.events)} events came"
            raise RunnerFailed(f"`{self.operation}` was not answered within {timeout_s:g} s; {come}") from None

    def hear(self, line: Json) -> None:
        """Take a line of the runner."""
        if self._ended.done():
            raise RunnerFailed(f"`{self.operation}` was answered again after its end: {line}")
        if "event" in line:
            self.events.append(line["event"])
        elif "ok" in line or "error" in line:
            self._ended.set_result(Answer(ok=line.get("ok"), error=line.get("error"), events=self.events))
        else:
            raise RunnerFailed(f"a line is neither event, ok nor error: {line}")

    def fail(self, error: RunnerFailed) -> None:
        """Hear that nothing will come any more."""
        if not self._ended.done():
            self._ended.set_exception(error)


class RunnerProcess:
    """One running runner.

    Args:
        language: whose.

    Attributes:
        features: what it said that it can do.
        client: the version of its client.
    """

    def __init__(self, language: Language) -> None:
        self.language = language
        self.features: frozenset[str] = frozenset()
        self.client = ""
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._pending: dict[int, Pending] = {}
        self._numbers = 0
        self._failure: RunnerFailed | None = None
        # Not a pipe: a runner that writes much to it must not come to a stop.
        self._errors = Path(tempfile.mkstemp(prefix=f"clag-{language.name}-")[1])

    async def start(self) -> Self:
        """Start the process and hear its hello.

        Raises:
            RunnerMissing: if there is none to start.
            RunnerFailed: if it does not say hello.
        """
        if not self.language.present:
            raise RunnerMissing(f"clients/{self.language.name}/run-conformance is not there")
        with self._errors.open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *self.language.arguments,
                cwd=ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=_LINE_BYTES,
                start_new_session=True,  # it may be a script whose children have to end with it
            )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                hello = (await self._line()).get("hello")
        except TimeoutError:
            await self.kill()
            raise RunnerFailed(f"no hello within {START_TIMEOUT_S:g} s{self._said()}") from None
        if hello is None or not isinstance(hello.get("features"), list):
            await self.kill()
            raise RunnerFailed(f"the first line is not a hello with features{self._said()}")
        self.features = frozenset(hello["features"])
        self.client = str(hello.get("client", ""))
        self._reader = asyncio.create_task(self._read(), name=f"runner-{self.language.name}")
        return self

    @property
    def alive(self) -> bool:
        """Whether it runs and keeps the protocol."""
        return self._failure is None and self._process is not None and self._process.returncode is None

    async def send(self, operation: str, **fields: Any) -> Pending:
        """Send a command.

        Raises:
            RunnerFailed: if the runner is gone.
        """
        if self._failure is not None:
            raise self._failure
        process = self._running()
        assert process.stdin is not None
        self._numbers += 1
        pending = self._pending[self._numbers] = Pending(self._numbers, operation)
        line = json.dumps({"id": self._numbers, "op": operation, **fields}, separators=(",", ":"))
        process.stdin.write(line.encode("ascii") + b"\n")
        try:
            await process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise RunnerFailed(f"the runner ended with {await process.wait()}{self._said()}") from None
        return pending

    async def kill(self) -> None:
        """Kill it: nothing of it gets to run."""
        if self._process is not None and self._process.returncode is None:
            self._signal(signal.SIGKILL)
            await self._process.wait()
        await self._stop_reading()

    async def close(self) -> None:
        """Close its input and wait for its end; kill it where that does not come."""
        if self._process is not None and self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await self._process.wait()
            except TimeoutError:
                self._signal(signal.SIGKILL)
                await self._process.wait()
        await self._stop_reading()
        self._errors.unlink(missing_ok=True)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it ended by itself, and asyncio has not heard of it yet
            os.killpg(self._running().pid, number)

    def _running(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    async def _stop_reading(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        self._lost(RunnerFailed("the runner was ended"))

    async def _read(self) -> None:
        try:
            while True:
                line = await self._line()
                self._named(line).hear(line)
        except RunnerFailed as failure:
            self._lost(failure)

    def _named(self, line: Json) -> Pending:
        pending = self._pending.get(line.get("id", 0))
        if pending is None:
            raise RunnerFailed(f"an answer to no command: {str(line)[:200]}")
        return pending

    def _lost(self, failure: RunnerFailed) -> None:
        self._failure = self._failure or failure
        for pending in self._pending.values():
            pending.fail(failure)

    async def _line(self) -> Json:
        process = self._running()
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line.endswith(b"\n"):
            code = await process.wait()
            if code == _TOOL_MISSING and self._reader is None:
                raise RunnerMissing(f"its toolchain or build is not there{self._said()}")
            raise RunnerFailed(f"the runner ended with {code}{self._said()}")
        try:
            value = json.loads(line)
        except ValueError:
            raise RunnerFailed(f"a line is not JSON: {line[:200]!r}") from None
        if not isinstance(value, dict):
            raise RunnerFailed(f"a line is not an object: {line[:200]!r}")
        return value

    def _said(self) -> str:
        said = self._errors.read_bytes()[-_TOLD_BYTES:].decode("utf-8", "replace").strip()
        return f"; it said:\n{said}" if said else ""
