"""Typed errors of the domain and the stores. The edge maps each to a status in one table (`api.errors`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One wrong field: its path in the request ("memory.text") and what is wrong, with the limit."""

    field: str
    description: str


class ClagError(Exception):
    """Base of every expected failure; `str()` is the sentence a caller reads."""


class InvalidField(ClagError):
    """A value no rule of the schema can catch is wrong (embedding length, page token, ...)."""

    def __init__(self, *violations: FieldViolation) -> None:
        super().__init__("; ".join(f"{v.field}: {v.description}" for v in violations))
        self.violations = violations


class NotFound(ClagError):
    """The named thing does not exist (in this namespace)."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f'{kind} "{name}" was not found')
        self.kind = kind
        self.name = name


class EtagMismatch(ClagError):
    """The memory changed since the caller read it."""

    def __init__(self, current: str) -> None:
        super().__init__(f'the etag does not match; the current one is "{current}"')
        self.current = current


class RequestIdReused(ClagError):
    """The request id was used before with another request."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f'request_id "{request_id}" was used before with another request')
        self.request_id = request_id


class StreamFenced(ClagError):
    """A newer opener took this stream over."""

    def __init__(self, stream_id: str) -> None:
        super().__init__(f'stream "{stream_id}" was opened again elsewhere; this connection is fenced off')
        self.stream_id = stream_id


class SequenceGap(ClagError):
    """A batch starts after the next expected sequence number."""

    def __init__(self, *, expected: int, got: int) -> None:
        super().__init__(f"expected sequence number {expected}, got {got}: items are missing in between")
        self.expected = expected
        self.got = got


class WindowExceeded(ClagError):
    """The client sent more unacknowledged items than its credit window allows."""

    def __init__(self, *, window: int, outstanding: int) -> None:
        super().__init__(f"{outstanding} items are unacknowledged, the window is {window}")
        self.window = window
        self.outstanding = outstanding


class FrameOrder(ClagError):
    """Frames came in an order the contract does not allow (no open first, two opens, a batch after finish)."""


class EmbedderMismatch(ClagError):
    """The namespace was embedded by another model; mixing spaces would make distances meaningless."""

    def __init__(self, *, namespace: str, pinned: str, pinned_dim: int, configured: str, dim: int) -> None:
        super().__init__(
            f'namespace "{namespace}" holds vectors of {pinned} ({pinned_dim} dimensions); the server runs '
            f'{configured} ({dim} dimensions). Start it with "--embedder {pinned}", or re-embed with '
            f'"clag reindex --namespace {namespace} --embedder {configured}"'
        )
        self.namespace = namespace
        self.pinned = pinned


class Overloaded(ClagError):
    """A queue is full; try again after `retry_after_s` seconds."""

    def __init__(self, what: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(f"{what} is overloaded; try again in {retry_after_s:g} s")
        self.retry_after_s = retry_after_s


class Draining(ClagError):
    """The server is shutting down; another (or the restarted one) will answer."""

    def __init__(self, *, retry_after_s: float = 2.0) -> None:
        super().__init__("the server is shutting down; connect again")
        self.retry_after_s = retry_after_s


class StorageFailed(ClagError):
    """The catalog could not write or read (disk full, I/O error); what was acknowledged is safe."""

    def __init__(self, what: str, *, retry_after_s: float = 5.0) -> None:
        super().__init__(f"storage failed: {what}")
        self.retry_after_s = retry_after_s


class NotYetImplemented(ClagError):
    """An RPC of the contract that this release does not serve yet."""


class AlreadyExists(ClagError):
    """The thing to be created is there."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f'{kind} "{name}" exists already')
        self.kind = kind
        self.name = name


class NamespaceDeleted(ClagError):
    """The namespace is being deleted, or was deleted under an open call."""

    def __init__(self, namespace: str) -> None:
        super().__init__(f'namespace "{namespace}" is deleted')
        self.namespace = namespace


class LogCompacted(ClagError):
    """The change log no longer reaches back to the revision asked for."""

    def __init__(self, *, asked: int, oldest: int) -> None:
        super().__init__(
            f"changes after revision {asked} are compacted away; the oldest to resume after is {oldest}"
        )
        self.asked = asked
        self.oldest = oldest


class SnapshotGone(ClagError):
    """The snapshot that an export's cursor belongs to no longer exists."""

    def __init__(self) -> None:
        super().__init__("the snapshot of this cursor is gone; start a new export")


class OwnershipLost(ClagError):
    """Another server has taken this catalog over; nothing more may be written by this one."""

    def __init__(self, owner: str) -> None:
        super().__init__(f"the data directory now belongs to {owner}; this server may not write to it any more")
        self.owner = owner


class ClusterStateError(ClagError):
    """A cluster or a memory in it is in no state for the edit."""


class EmbedderNotServed(ClagError):
    """A request names an embedder that this server does not run."""

    def __init__(self, *, asked: str, configured: str) -> None:
        super().__init__(
            f'this server embeds with {configured}, not with "{asked}"; start it with "--embedder {asked}" first'
        )
        self.configured = configured


class NamespaceLimit(ClagError):
    """The server has as many namespaces as its settings allow."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"this server takes {limit} namespaces (ingest.max_namespaces); delete one first")
        self.limit = limit


class OperationRunning(ClagError):
    """An operation of this kind already runs on the namespace."""

    def __init__(self, operation_id: str) -> None:
        super().__init__(f"operation {operation_id} already does this; wait for it or cancel it")
        self.operation_id = operation_id
