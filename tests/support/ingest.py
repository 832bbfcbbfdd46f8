"""An ingest stream in a test's hand: frames go out one by one, answers come back one by one."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from typing import Self

import grpc
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2

from tests.support.process import Stubs

STREAM_TIMEOUT_S = 60.0

Level = pb.AckLevel


def texts(*items: str) -> list[types_pb2.MemoryInput]:
    """Memories of these texts."""
    return [types_pb2.MemoryInput(text=text) for text in items]


class IngestStream:
    """One Ingest call."""

    def __init__(
        self,
        stubs: Stubs,
        namespace: str,
        stream_id: str = "s",
        *,
        level: pb.AckLevel.ValueType = pb.AckLevel.ACK_LEVEL_DURABLE,
        opening: bool = True,
        timeout_s: float = STREAM_TIMEOUT_S,
    ) -> None:
        self._out: queue.Queue[pb.IngestRequest | None] = queue.Queue()
        self.call = stubs.memory.Ingest(iter(self._out.get, None), timeout=timeout_s)
        self.next_seq = 1
        self.opened = pb.IngestOpened()
        self.results: list[pb.IngestResult] = []
        if opening:
            self.send(
                pb.IngestRequest(open=pb.IngestOpen(namespace=namespace, stream_id=stream_id, ack_level=level))
            )
            self.opened = self.receive().opened
            self.next_seq = self.opened.next_seq

    def send(self, frame: pb.IngestRequest) -> None:
        self._out.put(frame)

    def receive(self) -> pb.IngestResponse:
        response: pb.IngestResponse = next(self.call)
        return response

    def batch(self, items: Sequence[types_pb2.MemoryInput], *, first_seq: int | None = None) -> None:
        """Send items under the next sequence numbers, or given ones."""
        first = self.next_seq if first_seq is None else first_seq
        self.send(pb.IngestRequest(batch=pb.IngestBatch(first_seq=first, items=items)))
        self.next_seq = max(self.next_seq, first + len(items))

    def acked(self, seq: int | None = None) -> pb.IngestAck:
        """Read acknowledgements until `seq` (the last one sent) is acked; outcomes gather in `results`."""
        through = self.next_seq - 1 if seq is None else seq
        while True:
            ack = self.receive().ack
            self.results.extend(ack.results)
            if ack.acked_through >= through:
                return ack

    def finish(self) -> pb.IngestFinished:
        """Finish the stream and read to its end."""
        self.send(pb.IngestRequest(finish=pb.IngestFinish(last_seq=self.next_seq - 1)))
        finished = pb.IngestFinished()
        for response in self.call:
            self.results.extend(response.ack.results)
            if response.WhichOneof("frame") == "finished":
                finished = response.finished
        self.half_close()
        return finished

    def half_close(self) -> None:
        self._out.put(None)

    def failure(self) -> grpc.RpcError:
        """Read to the end; returns the error that ended the stream."""
        try:
            for response in self.call:
                self.results.extend(response.ack.results)
        except grpc.RpcError as error:
            return error
        raise AssertionError("the stream ended without an error")

    def rest(self) -> Iterator[pb.IngestResponse]:
        """What still comes."""
        return iter(self.call)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.half_close()
        self.call.cancel()


def store(
    stubs: Stubs,
    namespace: str,
    items: Sequence[types_pb2.MemoryInput],
    *,
    stream_id: str = "s",
    level: pb.AckLevel.ValueType = pb.AckLevel.ACK_LEVEL_SEARCHABLE,
) -> list[pb.IngestResult]:
    """Ingest items to the level, in frames of 64; the last outcome of each, in order."""
    with IngestStream(stubs, namespace, stream_id, level=level) as stream:
        for start in range(0, len(items), 64):
            stream.batch(items[start : start + 64])
        stream.finish()
    last = {result.seq: result for result in stream.results}
    return [last[seq] for seq in sorted(last)]
