"""Exports and imports in a test's hand."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any, Self

import grpc
from clag.v1 import admin_service_pb2 as pb

from tests.support.process import Stubs

TIMEOUT_S = 60.0


def export(stubs: Stubs, namespace: str, **fields: Any) -> list[pb.ExportRecord]:
    """All rows of an export."""
    request = pb.ExportRequest(namespace=namespace, **fields)
    return [record for response in stubs.admin.Export(request, timeout=TIMEOUT_S) for record in response.records]


class ImportStream:
    """One Import call."""

    def __init__(
        self, stubs: Stubs, namespace: str, stream_id: str = "s", *, timeout_s: float = TIMEOUT_S, **opening: Any
    ) -> None:
        self._out: queue.Queue[pb.ImportRequest | None] = queue.Queue()
        self.call = stubs.admin.Import(iter(self._out.get, None), timeout=timeout_s)
        self.rejections: list[pb.ImportRejection] = []
        self.send(pb.ImportRequest(open=pb.ImportOpen(namespace=namespace, stream_id=stream_id, **opening)))
        self.opened = next(self.call).opened
        self.next_seq = self.opened.next_seq

    def send(self, frame: pb.ImportRequest) -> None:
        self._out.put(frame)

    def batch(self, records: Sequence[pb.ExportRecord], *, first_seq: int | None = None) -> None:
        first = self.next_seq if first_seq is None else first_seq
        self.send(pb.ImportRequest(batch=pb.ImportBatch(first_seq=first, records=records)))
        self.next_seq = max(self.next_seq, first + len(records))

    def acked(self) -> None:
        """Read until everything sent is durable."""
        through = 0
        while through < self.next_seq - 1:
            ack = next(self.call).ack
            self.rejections.extend(ack.rejections)
            through = ack.acked_through

    def finish(self) -> pb.ImportFinished:
        self.send(pb.ImportRequest(finish=pb.ImportFinish(last_seq=self.next_seq - 1)))
        finished = pb.ImportFinished()
        for response in self.call:
            self.rejections.extend(response.ack.rejections)
            if response.WhichOneof("frame") == "finished":
                finished = response.finished
        self._out.put(None)
        return finished

    def failure(self) -> grpc.RpcError:
        try:
            for _ in self.call:
                pass
        except grpc.RpcError as error:
            return error
        raise AssertionError("the import ended without an error")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._out.put(None)
        self.call.cancel()


def load(
    stubs: Stubs, namespace: str, records: Sequence[pb.ExportRecord], *, stream_id: str = "s", **opening: Any
) -> tuple[pb.ImportFinished, list[pb.ImportRejection]]:
    """Import rows, 64 a frame."""
    with ImportStream(stubs, namespace, stream_id, **opening) as stream:
        for start in range(0, len(records), 64):
            stream.batch(records[start : start + 64])
        return stream.finish(), stream.rejections
