"""Bounds of what an imported row says in the server's own fields; the schema has rules for clients' fields only.

They are those of what this server writes, with room, so that a row of any release passes and a forged one cannot
store what could not be answered again in one message.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from clag.v1 import types_pb2
from google.protobuf.timestamp_pb2 import Timestamp

from clag_server.types.errors import FieldViolation

__all__ = ["cluster_violations", "memory_violations"]

_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_TEXT_BYTES: Final = 4_096
_WORDS: Final = 64
_WORD_BYTES: Final = 256
_LINKS: Final = 64
_CANDIDATES: Final = 64
_REPRESENTATIVES: Final = 64
_FIRST_S: Final = -9_214_560_000
_LAST_S: Final = 9_214_646_400
"""Years 1678 to 2261, as for the times that clients set."""


def memory_violations(memory: types_pb2.Memory) -> tuple[FieldViolation, ...]:
    """What is wrong with the server's fields of a memory."""
    return tuple(_memory(memory))


def cluster_violations(cluster: types_pb2.Cluster) -> tuple[FieldViolation, ...]:
    """What is wrong with a cluster, beyond the rules of the schema."""
    return tuple(_cluster(cluster))


def _memory(m: types_pb2.Memory) -> Iterator[FieldViolation]:
    if not m.memory_id:
        yield FieldViolation("memory.memory_id", "must be set")
    yield from _texts("memory", (("context", m.context), ("routing.reason", m.routing.reason)))
    yield from _words("memory.keywords", m.keywords)
    yield from _words("memory.evolved_tags", m.evolved_tags)
    for name, value in (
        ("cluster_id", m.cluster_id),
        ("episode_id", m.episode_id),
        ("superseded_by", m.superseded_by),
    ):
        if value and not _ID.fullmatch(value):
            yield FieldViolation(f"memory.{name}", "must be an id, or empty")
    yield from _times(
        "memory",
        (
            ("create_time", m.create_time),
            ("update_time", m.update_time),
            ("last_access_time", m.last_access_time),
            ("routing.decide_time", m.routing.decide_time),
        ),
    )
    yield from _enums(
        "memory",
        (
            ("state", m.state, types_pb2.MemoryState.values()),
            ("annotated_by", m.annotated_by, types_pb2.AnnotationSource.values()),
            ("routing.decided_by", m.routing.decided_by, types_pb2.RoutingDecider.values()),
            ("routing.fallback", m.routing.fallback, types_pb2.FallbackCause.values()),
        ),
    )
    yield from _finite(
        "memory", (("confidence", m.confidence, 0.0, 1.0), ("routing.slm_weight", m.routing.slm_weight, -1e6, 1e6))
    )
    if m.session_position > 1 << 53:
        yield FieldViolation("memory.session_position", "must be at most 2^53")
    if m.access_count > 1 << 53:
        yield FieldViolation("memory.access_count", "must be at most 2^53")
    yield from _links(m.links)
    yield from _candidates(m.routing.candidates)


def _links(links: Sequence[types_pb2.MemoryLink]) -> Iterator[FieldViolation]:
    if len(links) > _LINKS:
        yield FieldViolation("memory.links", f"must be at most {_LINKS}")
    for index, link in enumerate(links[:_LINKS]):
        path = f"memory.links[{index}]"
        if not _ID.fullmatch(link.memory_id):
            yield FieldViolation(f"{path}.memory_id", "must be an id")
        yield from _texts(path, (("reason", link.reason),))
        yield from _enums(path, (("kind", link.kind, types_pb2.LinkKind.values()),))
        yield from _finite(path, (("similarity", link.similarity, -1.01, 1.01),))


def _candidates(candidates: Sequence[types_pb2.RoutingCandidate]) -> Iterator[FieldViolation]:
    if len(candidates) > _CANDIDATES:
        yield FieldViolation("memory.routing.candidates", f"must be at most {_CANDIDATES}")
    for index, one in enumerate(candidates[:_CANDIDATES]):
        path = f"memory.routing.candidates[{index}]"
        yield from _texts(path, (("title", one.title),))
        numbers = (("cosine", one.cosine), ("channel_score", one.channel_score), ("combined", one.combined))
        yield from _finite(path, ((name, value, -1e9, 1e9) for name, value in numbers))


def _cluster(c: types_pb2.Cluster) -> Iterator[FieldViolation]:
    if not _ID.fullmatch(c.cluster_id):
        yield FieldViolation("cluster.cluster_id", "must be an id")
    if len(c.representative_ids) > _REPRESENTATIVES:
        yield FieldViolation("cluster.representative_ids", f"must be at most {_REPRESENTATIVES}")
    for index, memory_id in enumerate(c.representative_ids[:_REPRESENTATIVES]):
        if not _ID.fullmatch(memory_id):
            yield FieldViolation(f"cluster.representative_ids[{index}]", "must be an id")
    yield from _times("cluster", (("create_time", c.create_time), ("update_time", c.update_time)))
    yield from _enums(
        "cluster",
        (
            ("state", c.state, types_pb2.ClusterState.values()),
            ("profiled_by", c.profiled_by, types_pb2.AnnotationSource.values()),
        ),
    )
    if c.memory_count > 1 << 53:
        yield FieldViolation("cluster.memory_count", "must be at most 2^53")


def _texts(path: str, texts: Iterable[tuple[str, str]]) -> Iterator[FieldViolation]:
    for name, text in texts:
        if "\x00" in text:
            yield FieldViolation(f"{path}.{name}", "must not contain the NUL character")
        elif len(text) > _TEXT_BYTES or len(text.encode()) > _TEXT_BYTES:
            yield FieldViolation(f"{path}.{name}", f"must be at most {_TEXT_BYTES} bytes")


def _words(path: str, words: Sequence[str]) -> Iterator[FieldViolation]:
    if len(words) > _WORDS:
        yield FieldViolation(path, f"must be at most {_WORDS}")
    for index, word in enumerate(words[:_WORDS]):
        if not word or "\x00" in word or len(word.encode()) > _WORD_BYTES:
            yield FieldViolation(f"{path}[{index}]", f"must be 1 to {_WORD_BYTES} bytes without NUL")


def _times(path: str, times: Iterable[tuple[str, Timestamp]]) -> Iterator[FieldViolation]:
    for name, stamp in times:
        if not _FIRST_S <= stamp.seconds < _LAST_S:
            yield FieldViolation(f"{path}.{name}", "must lie in the years 1678 to 2261")


def _enums(path: str, values: Iterable[tuple[str, int, Sequence[int]]]) -> Iterator[FieldViolation]:
    for name, value, known in values:
        if value not in known:
            yield FieldViolation(f"{path}.{name}", "must be one of the defined values")


def _finite(path: str, values: Iterable[tuple[str, float, float, float]]) -> Iterator[FieldViolation]:
    for name, value, low, high in values:
        if not math.isfinite(value) or not low <= value <= high:
            yield FieldViolation(f"{path}.{name}", f"must be a number from {low:g} to {high:g}")
