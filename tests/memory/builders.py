"""Memories, vectors and episodes for tests of the domain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clag_server.types.memory import Memory, MemoryKind, MemoryState, NewMemory, Vector

DIM = 8
DAY_NS = 86_400 * 1_000_000_000
START_NS = 1_772_000_000 * 1_000_000_000


def direction(axis: int, *, tilt: float = 0.0, towards: int = 0) -> Vector:
    """Return a unit vector along `axis`, tilted towards another axis."""
    vector = np.zeros(DIM, dtype=np.float32)
    vector[axis] = 1.0
    vector[towards] += tilt
    result: Vector = (vector / np.linalg.norm(vector)).astype(np.float32)
    return result


def memory(
    key: int,
    text: str = "a note",
    *,
    session: str = "s",
    position: int | None = None,
    cluster: int | None = None,
    episode: int | None = None,
    superseded_by: str = "",
    supersedes: Sequence[str] = (),
    speaker: str = "",
    time_ns: int | None = None,
) -> Memory:
    """Return a stored memory with id `m<key>`."""
    return Memory(
        key=key,
        memory_id=f"m{key}",
        text=text,
        kind=MemoryKind.OBSERVATION,
        task="",
        speaker=speaker,
        session_id=session,
        session_position=key if position is None else position,
        tags=(),
        attributes={},
        importance=None,
        confidence=1.0,
        event_time_ns=START_NS + key * DAY_NS if time_ns is None else time_ns,
        create_time_ns=START_NS,
        update_time_ns=START_NS,
        expire_time_ns=None,
        context="",
        keywords=(),
        evolved_tags=(),
        links=(),
        cluster=cluster,
        episode=episode,
        state=MemoryState.STORED,
        routing=None,
        supersedes=tuple(supersedes),
        superseded_by=superseded_by,
        access_count=0,
        last_access_time_ns=None,
        revision=key,
        error="",
        has_embedding=False,
    )


def new(text: str, memory_id: str = "", **fields: object) -> NewMemory:
    """Return a memory as a client would send it."""
    return NewMemory(text=text, memory_id=memory_id, **fields)  # type: ignore[arg-type]
