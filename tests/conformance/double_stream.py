"""One connection of an ingest stream at the double: its credit, its position, and what breaks the rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2

__all__ = ["Behaviour", "Seen", "Stream"]

MAX_FRAME_ITEMS: Final = 64
MAX_FRAME_BYTES: Final = 1024 * 1024


@dataclass
class Behaviour:
    """What the double does.

    Attributes:
        windows: credit windows: of `opened`, then of each acknowledgement in turn; the last one stays.
        ack_delay_ms: how long each acknowledgement is held back.
        again_after_ms: where a window is 0: the acknowledgement comes again after so long with the next window.
        lag: items that are durable and not yet acknowledged, at most.
        hold: whether acknowledgements wait until a scenario releases them.
        cut_after: numbers of stored items from which on the connection fails, before an acknowledgement, each once.
        cut_code: the code that it fails with.
        retry_ms: the wait that the failure asks for; None for none.
        end_quietly_after: numbers of stored items from which on the stream ends as if all were well, each once.
        fence_opens: how many opens from the first are answered with STREAM_FENCED.
        refuse_opens: how many opens from the first fail with UNAVAILABLE.
        level: the level that outcomes report.
        checkpoints: responses of a watch before its connection fails.
    """

    windows: list[int] = field(default_factory=lambda: [1024])
    ack_delay_ms: int = 0
    again_after_ms: int = 300
    lag: int = 0
    hold: bool = False
    cut_after: list[int] = field(default_factory=list)
    cut_code: str = "UNAVAILABLE"
    retry_ms: int | None = None
    end_quietly_after: list[int] = field(default_factory=list)
    fence_opens: int = 0
    refuse_opens: int = 0
    level: str = "DURABLE"
    checkpoints: int = 3


@dataclass
class Seen:
    """What the double saw of the client.

    Attributes:
        opens: streams opened.
        items: items received, in all.
        stored: texts by stream.
        frames: batches received.
        max_frame_items: items of the largest.
        max_frame_bytes: bytes of the largest.
        max_in_flight: most items that were received and not yet acknowledged.
        sent_again: items received again that were durable, and known to be so by the client.
        broken: rules that were broken, in sentences.
        tokens: what the metadata `authorization` said, once each.
        cancelled: calls that the client gave up.
        resumed_from: positions that watches asked to go on after.
    """

    opens: int = 0
    items: int = 0
    stored: dict[str, list[str]] = field(default_factory=dict)
    frames: int = 0
    max_frame_items: int = 0
    max_frame_bytes: int = 0
    max_in_flight: int = 0
    sent_again: int = 0
    broken: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    cancelled: int = 0
    resumed_from: list[str] = field(default_factory=list)


class Stream:
    """One connection of a stream.

    Args:
        behaviour: what the double does.
        seen: what it saw, which this adds to.
        texts: what is stored of the stream.
    """

    def __init__(self, behaviour: Behaviour, seen: Seen, texts: list[str]) -> None:
        self._behaviour = behaviour
        self._seen = seen
        self._texts = texts
        self._windows = iter(behaviour.windows)
        self._next_window()
        self._acked = len(texts)
        self._told_durable = len(texts)
        self._allowed = self._acked + self.window
        self._reported = len(texts)

    @property
    def position(self) -> int:
        """Items stored."""
        return len(self._texts)

    def opened(self) -> pb.IngestResponse:
        """The first frame."""
        opened = pb.IngestOpened(
            next_seq=self.position + 1,
            window_items=self.window,
            max_batch_items=256,
            max_batch_bytes=MAX_FRAME_BYTES,
            max_text_bytes=32_768,
        )
        return pb.IngestResponse(opened=opened)

    def take(self, request: pb.IngestRequest) -> None:
        """Store a batch, and note which rules it breaks."""
        batch, seen = request.batch, self._seen
        last = batch.first_seq + len(batch.items) - 1
        seen.frames += 1
        seen.items += len(batch.items)
        seen.max_frame_items = max(seen.max_frame_items, len(batch.items))
        seen.max_frame_bytes = max(seen.max_frame_bytes, request.ByteSize())
        seen.max_in_flight = max(seen.max_in_flight, last - self._acked)
        if not batch.items:
            seen.broken.append("a frame without items")
        if len(batch.items) > MAX_FRAME_ITEMS:
            seen.broken.append(f"a frame of {len(batch.items)} items")
        if request.ByteSize() > MAX_FRAME_BYTES:
            seen.broken.append(f"a frame of {request.ByteSize()} bytes")
        if last > self._allowed:
            seen.broken.append(f"item {last} was sent, credit reaches to {self._allowed}")
        if batch.first_seq > self.position + 1:
            seen.broken.append(f"item {batch.first_seq} follows {self.position}")
        for seq, item in enumerate(batch.items, start=batch.first_seq):
            if seq > self.position:
                self._texts.append(item.text)
            elif seq <= self._told_durable:
                seen.sent_again += 1

    def ack(self) -> pb.IngestResponse:
        """Acknowledge what was stored, as far as the behaviour does."""
        self._next_window()
        self._acked = max(self._acked, self.position - self._behaviour.lag)
        # Credit that was given is not taken back from what is on its way.
        self._allowed = max(self._allowed, self._acked + self.window)
        self._told_durable = self.position
        level = pb.AckLevel.Value(f"ACK_LEVEL_{self._behaviour.level}")
        results = [
            pb.IngestResult(
                seq=seq,
                disposition=pb.DISPOSITION_CREATED,
                level=level,
                memory_id=f"m-{seq}",
                state=types_pb2.MEMORY_STATE_STORED,
            )
            for seq in range(self._reported + 1, self.position + 1)
        ]
        self._reported = self.position
        ack = pb.IngestAck(
            acked_through=self._acked, durable_through=self.position, window_items=self.window, results=results
        )
        return pb.IngestResponse(ack=ack)

    def finished(self) -> pb.IngestResponse:
        """The last frame."""
        return pb.IngestResponse(finished=pb.IngestFinished(created=self.position))

    def _next_window(self) -> None:
        self.window = next(self._windows, getattr(self, "window", 1))
