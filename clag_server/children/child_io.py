"""What a child says: messages on its life line, and its output, forwarded to the log and kept for errors."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["LineMessage", "StderrTail", "forward_output", "read_messages"]

_log = structlog.get_logger("clag.children")

_KEPT_LINES = 50
_MAX_LINE_CHARS = 2000
_CHUNK_BYTES = 65536


@dataclass(frozen=True, slots=True)
class LineMessage:
    """One message of a child: what it does before it is ready, what it reports with "ready", or why it gives up."""

    ready: dict[str, object] = field(default_factory=dict)
    fatal: str | None = None
    progress: str | None = None


class StderrTail:
    """The last lines of a child's output, bounded in number and length."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)

    @property
    def lines(self) -> tuple[str, ...]:
        """The kept lines, oldest first."""
        return tuple(self._lines)

    def add(self, line: str) -> None:
        """Keep one line, cut to a bounded length; blank lines are left out."""
        if line.strip():
            self._lines.append(line[:_MAX_LINE_CHARS])


async def read_messages(line: asyncio.StreamReader) -> AsyncIterator[LineMessage]:
    """Yield the child's messages until it closes the line. Lines that are not messages are skipped."""
    while True:
        try:
            raw = await line.readline()
        except (ConnectionError, ValueError):
            return  # reset by a killed child, or a line past the reader's limit: no message of ours
        if not raw:
            return
        try:
            body = json.loads(raw)
        except ValueError:
            _log.warning("child sent a line that is not a message", size=len(raw))
            continue
        if not isinstance(body, dict):
            continue
        if "fatal" in body:
            yield LineMessage(fatal=str(body["fatal"]))
        elif "progress" in body:
            yield LineMessage(progress=str(body["progress"])[:_MAX_LINE_CHARS])
        elif isinstance(body.get("ready"), dict):
            yield LineMessage(ready=body["ready"])


async def forward_output(name: str, stream: asyncio.StreamReader, tail: StderrTail) -> None:
    """Copy a child's output to the log, line by line, until it ends.

    Reads chunks rather than lines: a line without an end must neither fail nor grow without bound.
    """
    rest = ""
    while chunk := await stream.read(_CHUNK_BYTES):
        *lines, rest = (rest + chunk.decode(errors="replace")).split("\n")
        rest = rest[-_MAX_LINE_CHARS:]
        for text in lines:
            _emit(name, text, tail)
    _emit(name, rest, tail)


def _emit(name: str, text: str, tail: StderrTail) -> None:
    text = text.rstrip("\r")
    if not text.strip():
        return
    tail.add(text)
    _log.info("child output", child=name, line=text[:_MAX_LINE_CHARS])
