"""The worker's end of the socket: requests sorted by priority, answers, and signs of life."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time

from clag_server.models import protocol

__all__ = ["Request", "WorkerLink"]

_BEAT_EVERY_S = 1.0

Request = protocol.Embed | protocol.ChooseBatch | protocol.Generate | protocol.Cancel


class WorkerLink:
    """The worker's end of the socket.

    Args:
        line: The inherited socket.
    """

    def __init__(self, line: socket.socket) -> None:
        self._socket = line
        self._order = 0
        self._last_beat_s = 0.0
        self._sending = threading.Lock()  # the language model's loader reports from its own thread
        self.requests: queue.PriorityQueue[tuple[int, int, Request]] = queue.PriorityQueue()

    def start(self) -> None:
        """Begin to read requests."""
        threading.Thread(target=self._read_all, name="frames", daemon=True).start()

    def send(self, frame: protocol.Frame) -> None:
        """Send one frame; blocks while the server does not read."""
        body = protocol.encode(frame)
        with self._sending:
            self._socket.sendall(body)

    @property
    def beat_due(self) -> bool:
        """Whether the last sign of life was a second ago."""
        return time.monotonic() - self._last_beat_s >= _BEAT_EVERY_S

    def beat(self, frame: protocol.Beat) -> None:
        """Send a sign of life."""
        self._last_beat_s = time.monotonic()
        self.send(frame)

    def _read_all(self) -> None:
        while True:
            header = self._read(protocol.HEADER_BYTES)
            frame = protocol.decode(self._read(protocol.frame_length(header)))
            if not isinstance(frame, Request):
                raise protocol.FrameError(f"the server sent {type(frame).__name__}")
            self._order += 1
            self.requests.put((frame.priority, self._order, frame))

    def _read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            part = self._socket.recv(min(size, 1 << 20))
            if not part:
                os._exit(0)  # the server closed this worker's line: it will not ask again
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
