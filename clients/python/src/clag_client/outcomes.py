"""What became of the items of a stream."""

from __future__ import annotations

from dataclasses import dataclass

from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2

__all__ = ["Outcome", "lost_outcome", "outcome_of"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an item, as far as it has come. An item may come again when it has come further.

    Attributes:
        seq: its number in the source, from 1.
        disposition: CREATED, DUPLICATE or REJECTED; UNSPECIFIED for an item that is durable but whose progress
            was lost sight of with a connection.
        level: the acknowledgement level that it has reached; UNSPECIFIED when rejected.
        memory_id: its memory; empty when rejected.
        cluster_id: its cluster; empty while it has none.
        state: its state.
        error: why it was rejected or quarantined, else None.
        final: whether nothing more comes of it: it has reached the level that was asked for, or never will.
    """

    seq: int
    disposition: pb.Disposition.ValueType
    level: pb.AckLevel.ValueType
    memory_id: str
    cluster_id: str
    state: types_pb2.MemoryState.ValueType
    error: types_pb2.ItemError | None
    final: bool


def outcome_of(result: pb.IngestResult, *, wanted: pb.AckLevel.ValueType) -> Outcome:
    """Return an outcome as the server reports it.

    Args:
        result: the report.
        wanted: the level that the stream asked for.
    """
    return Outcome(
        seq=result.seq,
        disposition=result.disposition,
        level=result.level,
        memory_id=result.memory_id,
        cluster_id=result.cluster_id,
        state=result.state,
        error=result.error if result.HasField("error") else None,
        final=result.disposition != pb.DISPOSITION_CREATED
        or result.level >= wanted
        or result.state == types_pb2.MEMORY_STATE_QUARANTINED,
    )


def lost_outcome(seq: int, memory_id: str) -> Outcome:
    """Return the last outcome of an item that is durable and whose progress was lost sight of with a connection.

    Args:
        seq: the item.
        memory_id: its memory as far as it is known; empty when its report was lost too.
    """
    return Outcome(
        seq=seq,
        disposition=pb.DISPOSITION_UNSPECIFIED,
        level=pb.ACK_LEVEL_DURABLE,
        memory_id=memory_id,
        cluster_id="",
        state=types_pb2.MEMORY_STATE_UNSPECIFIED,
        error=None,
        final=True,
    )
