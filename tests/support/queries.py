"""A RetrieveStream call in a test's hand: queries go out one by one, frames come back in order."""

from __future__ import annotations

import queue
from collections import defaultdict
from typing import Any, Self

import grpc
from clag.v1 import memory_service_pb2 as pb

from tests.support.process import Stubs

TIMEOUT_S = 60.0


class QueryStream:
    """One RetrieveStream call."""

    def __init__(self, stubs: Stubs, *, timeout_s: float = TIMEOUT_S) -> None:
        self._out: queue.Queue[pb.RetrieveStreamRequest | None] = queue.Queue()
        self.call: Any = stubs.memory.RetrieveStream(iter(self._out.get, None), timeout=timeout_s)
        self.limits = next(self.call).limits
        self.frames: dict[str, list[pb.RetrieveStreamResponse]] = defaultdict(list)

    def send(self, frame: pb.RetrieveStreamRequest) -> None:
        self._out.put(frame)

    def ask(self, query_id: str, namespace: str, text: str, **more: Any) -> None:
        request = pb.RetrieveRequest(namespace=namespace, query=pb.Query(text=text), **more)
        self.send(pb.RetrieveStreamRequest(query_id=query_id, retrieve=request))

    def cancel(self, query_id: str) -> None:
        self.send(pb.RetrieveStreamRequest(query_id=query_id, cancel=pb.CancelQuery()))

    def half_close(self) -> None:
        self._out.put(None)

    def ended(self, *query_ids: str) -> None:
        """Read until these queries have ended."""
        while not all(self.end_of(one) for one in query_ids):
            frame = next(self.call)
            self.frames[frame.query_id].append(frame)

    def rest(self) -> None:
        """Read to the end of the stream."""
        for frame in self.call:
            self.frames[frame.query_id].append(frame)

    def end_of(self, query_id: str) -> str:
        """Return "done" or "error"; "" while neither came."""
        kinds = self.kinds(query_id)
        return kinds[-1] if kinds and kinds[-1] in ("done", "error") else ""

    def kinds(self, query_id: str) -> list[str]:
        return [str(frame.WhichOneof("stage")) for frame in self.frames[query_id]]

    def texts(self, query_id: str) -> list[str]:
        return [hit.memory.text for frame in self.frames[query_id] for hit in frame.memories.hits]

    def failure(self) -> grpc.RpcError:
        """Read to the end; returns the error that ended the stream."""
        try:
            self.rest()
        except grpc.RpcError as error:
            return error
        raise AssertionError("the stream ended without an error")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.half_close()
        self.call.cancel()
