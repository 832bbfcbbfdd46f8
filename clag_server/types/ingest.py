"""Values of the ingest path: what a stream asked for and what became of each item."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from clag_server.types.memory import MemoryState, NewMemory


class AckLevel(enum.IntEnum):
    """What an acknowledgement promises (numbers as in `clag.v1.AckLevel`)."""

    DURABLE = 1
    SEARCHABLE = 2
    ORGANIZED = 3


class IngestStages(enum.IntEnum):
    """How far the pipeline goes for a stream's items (numbers as in `clag.v1.IngestStages`).

    Later stages of EMBED_ONLY run when nothing else waits; STORE_ONLY leaves the items STORED until asked.
    """

    ALL = 1
    EMBED_ONLY = 2
    STORE_ONLY = 3


class Disposition(enum.IntEnum):
    """What became of an item (numbers as in `clag.v1.Disposition`)."""

    CREATED = 1
    DUPLICATE = 2
    REJECTED = 3


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why an item was not stored: the field path within the item and what is wrong."""

    field: str
    description: str


@dataclass(frozen=True, slots=True)
class StreamRef:
    """An open stream: its name and the epoch that this opener got; an older epoch is fenced."""

    stream_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Where an opened stream stands: everything below `next_seq` is durable."""

    ref: StreamRef
    next_seq: int
    created: int
    duplicates: int
    rejected: int


@dataclass(frozen=True, slots=True)
class StoredItem:
    """The durable outcome of one item. `key` is the catalog's row (the existing one for a duplicate)."""

    seq: int
    disposition: Disposition
    memory_id: str
    key: int | None
    rejection: Rejection | None


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Outcomes of one committed batch, in order, and the revision that holds them."""

    items: Sequence[StoredItem]
    revision: int


IngestItem = NewMemory | Rejection
"""An item that passed the rules, or the reason why it did not (it still takes its sequence number)."""


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """What an acknowledgement says of one item; an item appears again when it reaches a higher level.

    `level` is None for a REJECTED item. `error` is the reason of a QUARANTINED memory, "" otherwise.
    """

    seq: int
    disposition: Disposition
    level: AckLevel | None
    memory_id: str
    cluster: int | None
    state: MemoryState | None
    rejection: Rejection | None
    error: str


@dataclass(frozen=True, slots=True)
class Ack:
    """A cumulative acknowledgement: every item up to `acked_through` has reached the stream's level.

    (A rejected, duplicate or quarantined item counts as having reached it.) `durable_through` runs ahead of it.
    """

    acked_through: int
    durable_through: int
    window_items: int
    results: tuple[ItemOutcome, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class StreamTotals:
    """Final counts of a finished stream; `quarantined` are among the created."""

    created: int
    duplicates: int
    rejected: int
    quarantined: int
    revision: int
