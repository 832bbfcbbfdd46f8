"""What a catalog promises beyond storing: namespaces, updates, deletes, expiry.

Rules as in `catalog.api`: every write is one transaction, on disk when the method returns, with a revision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from clag_server.types.filters import Filter
from clag_server.types.memory import Memory, NewMemory
from clag_server.types.namespace import NamespaceSettings

if TYPE_CHECKING:
    from clag_server.catalog.api import EmbedderPin, Namespace
    from clag_server.catalog.api_clusters import EditAnswer


@dataclass(frozen=True, slots=True)
class Updated:
    """A memory after its update. `replaced` says that it lost its place and is STORED again, to be embedded.

    `episode` and `cluster` are where it was before (None when it had no place), for mirrors to read again.
    """

    memory: Memory
    revision: int
    replaced: bool
    episode: int | None
    cluster: int | None


@dataclass(frozen=True, slots=True)
class DeletedBatch:
    """What one deleting transaction took away, and the episodes and clusters that mirrors must read again.

    `keys` and `memory_ids` are aligned.
    """

    keys: Sequence[int]
    memory_ids: Sequence[str]
    episodes: frozenset[int]
    clusters: frozenset[int]
    revision: int


class CatalogEdits(Protocol):
    """Namespaces as a whole, and changes that clients make to memories."""

    # --- namespaces
    async def create_namespace(
        self, name: str, embedder: EmbedderPin, settings: NamespaceSettings, *, now_ns: int
    ) -> Namespace:
        """Create a namespace; raises AlreadyExists (also while one of that name is being deleted)."""

    async def update_namespace(self, ns: int, settings: NamespaceSettings, *, etag: str, now_ns: int) -> Namespace:
        """Replace the settings. An empty etag matches any. Raises NotFound, NamespaceDeleted, EtagMismatch."""

    async def mark_deleting(self, ns: int, *, now_ns: int) -> Namespace:
        """Say that the namespace goes: from now on every write to it raises NamespaceDeleted. Idempotent.

        Raises NamespaceDeleted when it is gone altogether, NotFound when it never was.
        """

    async def purge_namespace(self, ns: int, *, limit: int) -> int:
        """Remove up to `limit` rows of a namespace that is marked; 0 when nothing, the namespace included, is left.

        Call it until it returns 0; its name is free then. Its change log, history, streams, requests and full-text
        index go too; operations stay. Raises ValueError for a namespace that is not marked.
        """

    # --- memories
    async def update(
        self,
        ns: int,
        memory_id: str,
        after: NewMemory,
        *,
        fields: frozenset[str],
        lexical: str | None,
        etag: str,
        now_ns: int,
        answer: Callable[[Updated], EditAnswer] | None = None,
    ) -> Updated:
        """Give the `fields` (names of NewMemory) of a memory the values they have in `after`, with history.

        A change of text, speaker, event_time_ns, session_id or embedding takes the memory out of its place: it is
        STORED again, without placement, routing and lexical entry; its episode and cluster are settled and
        representatives naming it are removed. In another session it is the last. Otherwise it stays where it is,
        and `lexical` (None: as it is) replaces its entry in the full-text index. Links, annotations and history
        stay; an annotation of old words is made anew by evolution. `supersedes` marks and releases others.

        The embedding: among the fields it is the client's (None takes the client's away). Otherwise a client's
        stays until the text changes, the server's until text, speaker or event time do; then it is that of `after`,
        as the server's, or none: do not pass the old one. Without an event time, the create time is the event time;
        without an expire time, the memory never expires. Values that are the old ones change nothing, not even the
        revision. An empty etag matches any. What `answer` makes of the outcome is kept for retries (`edit_answer`),
        in the same transaction.
        Raises NotFound, EtagMismatch, InvalidField, NamespaceDeleted, ValueError for a field that cannot change.
        """

    async def count_matching(self, ns: int, where: Filter) -> tuple[int, int]:
        """Count the memories that match, in any state; returns (count, largest key among them, 0 for none)."""

    async def delete_matching(
        self, ns: int, where: Filter, *, through_key: int, limit: int, now_ns: int, after_key: int = 0
    ) -> DeletedBatch:
        """Delete up to `limit` matching memories of keys up to `through_key`, everywhere, in one transaction.

        The batch has ascending keys; an empty one says that no more match. Passing the last key of the batch before
        as `after_key` saves reading what was looked at already. Raises InvalidField (filter), NamespaceDeleted.
        """

    async def delete_expired(self, ns: int, *, now_ns: int, limit: int) -> DeletedBatch:
        """Delete up to `limit` memories whose expire time has come, everywhere, in one transaction.

        Those that expired first go first. Raises NamespaceDeleted.
        """

    async def next_expiry(self) -> Mapping[int, int]:
        """The earliest expire time (nanoseconds) of each namespace that has any and is not being deleted."""
