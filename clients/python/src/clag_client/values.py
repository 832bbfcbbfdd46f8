"""Plain Python values for what a client sends most: memories and queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeAlias, TypedDict

from clag.v1 import memory_service_pb2, types_pb2
from google.protobuf.timestamp_pb2 import Timestamp

__all__ = ["Attribute", "ItemLike", "NewMemory", "RetrieveOptions", "retrieve_request", "to_input", "to_timestamp"]

Attribute: TypeAlias = "str | bool | int | float | Sequence[str]"
"""A typed attribute."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class NewMemory:
    """A memory to store. Limits are those of `clag.v1.MemoryInput`.

    Attributes:
        text: the text, 1 to 32,768 bytes of UTF-8.
        memory_id: empty lets the server make one; a repeated id is a duplicate, never a second memory.
        kind: what kind of experience it is.
        event_time: when it happened; None is the time of arrival. Must have a time zone.
        expire_time: when it is to be forgotten; None is never. Must have a time zone.
        importance: 0 to 1; None is the server's default.
    """

    text: str
    memory_id: str = ""
    kind: types_pb2.MemoryKind.ValueType = types_pb2.MEMORY_KIND_UNSPECIFIED
    task: str = ""
    speaker: str = ""
    session_id: str = ""
    tags: Sequence[str] = ()
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    importance: float | None = None
    event_time: datetime | None = None
    expire_time: datetime | None = None
    supersedes: Sequence[str] = ()
    embedding: Sequence[float] = ()

    def to_proto(self) -> types_pb2.MemoryInput:
        """Make the message.

        Raises:
            ValueError: if a text has no UTF-8 form (a lone surrogate) or a time has no time zone.
            TypeError: if a value is of none of the allowed types.
        """
        made = types_pb2.MemoryInput(
            memory_id=self.memory_id,
            text=self.text,
            kind=self.kind,
            task=self.task,
            speaker=self.speaker,
            session_id=self.session_id,
            tags=self.tags,
            importance=self.importance,
            event_time=to_timestamp(self.event_time),
            expire_time=to_timestamp(self.expire_time),
            supersedes=self.supersedes,
            embedding=self.embedding,
        )
        for key, value in self.attributes.items():
            made.attributes[key].CopyFrom(_attribute(value))
        return made


ItemLike: TypeAlias = "NewMemory | types_pb2.MemoryInput | str"
"""What `ingest` and `create_memory` take: a bare string is a memory with that text."""


def to_input(item: ItemLike) -> types_pb2.MemoryInput:
    """Return an item as a message. Raises ValueError or TypeError as `NewMemory.to_proto` does."""
    if isinstance(item, types_pb2.MemoryInput):
        return item
    return NewMemory(item).to_proto() if isinstance(item, str) else item.to_proto()


def to_timestamp(moment: datetime | None) -> Timestamp | None:
    """Return an instant as a message.

    Raises:
        ValueError: if it has no time zone: a guess would be wrong for someone.
    """
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise ValueError(f"the time {moment.isoformat()} has no time zone")
    since = moment - _EPOCH
    return Timestamp(seconds=since.days * 86_400 + since.seconds, nanos=since.microseconds * 1_000)


class RetrieveOptions(TypedDict, total=False):
    """Options of a retrieval; see the fields of `clag.v1.RetrieveRequest` of the same names."""

    filter: types_pb2.Filter
    mode: memory_service_pb2.RetrievalMode.ValueType
    slm_use: memory_service_pb2.SlmUse.ValueType
    task_hint: str
    session_id: str
    max_clusters: int
    max_memories: int
    min_score: float
    context_tokens: int
    context_format: memory_service_pb2.ContextFormat.ValueType
    read: types_pb2.ReadOptions
    include_embeddings: bool
    include_archived: bool
    include_superseded: bool
    explain: bool


def retrieve_request(
    namespace: str, query: str | Sequence[float], options: RetrieveOptions
) -> memory_service_pb2.RetrieveRequest:
    """Make the request of a retrieval.

    Args:
        namespace: where to look.
        query: a text, or an embedding of the namespace's dimension.
        options: the rest.
    """
    asked = (
        memory_service_pb2.Query(text=query)
        if isinstance(query, str)
        else memory_service_pb2.Query(embedding=query)
    )
    return memory_service_pb2.RetrieveRequest(namespace=namespace, query=asked, **options)


def _attribute(value: Attribute) -> types_pb2.AttributeValue:
    match value:
        case str():
            return types_pb2.AttributeValue(string_value=value)
        case bool():  # before int, of which it is one
            return types_pb2.AttributeValue(bool_value=value)
        case int():
            return types_pb2.AttributeValue(int_value=value)
        case float():
            return types_pb2.AttributeValue(double_value=value)
        case _:
            return types_pb2.AttributeValue(string_list=types_pb2.StringList(values=value))
