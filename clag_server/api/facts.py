"""What handlers know of the server they run in: limits, models, open streams. Filled by the composition root."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from clag_server.memory.config import IngestConfig
from clag_server.models.api import EngineStatus
from clag_server.types.competence import ProbeReport

__all__ = ["ModelFacts", "OpenStreams", "ServerFacts"]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model: status, hash of its weights ("" when unknown), length of its vectors (0 for none).

    `configured` is False when the settings ask for no such model.
    """

    status: EngineStatus
    fingerprint: str = ""
    dim: int = 0
    configured: bool = True


@dataclass(slots=True)
class OpenStreams:
    """Counts open ingest streams by namespace."""

    _counts: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def counted(self, namespace: str) -> Iterator[None]:
        """Count a stream while the block runs."""
        self._counts[namespace] += 1
        try:
            yield
        finally:
            self._counts[namespace] -= 1
            if not self._counts[namespace]:
                del self._counts[namespace]

    def of(self, namespace: str) -> int:
        """Number of open streams of a namespace, of all when it is empty."""
        return self._counts[namespace] if namespace else self._counts.total()


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server, as its handlers see it.

    Attributes:
        ingest: Limits of ingest streams.
        unary_deadline_s: Longest time of a call that is not a stream, in seconds.
        start_time_ns: When the server started.
        capabilities: Optional features that are switched on.
        embedder: Asks for the embedder's state.
        slm: Asks for the SLM's state.
        probe: Asks for the outcome of the last competence probe of the SLM; None when there is none.
        streams: The open ingest streams.
    """

    ingest: IngestConfig
    unary_deadline_s: float
    start_time_ns: int
    capabilities: tuple[str, ...]
    embedder: Callable[[], ModelFacts]
    slm: Callable[[], ModelFacts]
    probe: Callable[[], ProbeReport | None] = lambda: None
    streams: OpenStreams = field(default_factory=OpenStreams)

    def embedding_dim(self) -> int | None:
        """Length of the index's vectors; None until the embedder is known."""
        return self.embedder().dim or None
