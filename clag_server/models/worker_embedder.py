"""The embedder as the domain sees it, answered by the model worker."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import numpy as np

from clag_server.models import protocol
from clag_server.models.api import (
    Priority,
    WrongShapeError,
)
from clag_server.models.batching import BatchQueue, Pending
from clag_server.models.engine import BYTES_PER_TOKEN, Engine, check_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from clag_server.models.client import Answer, WorkerClient

__all__ = ["WorkerEmbedder"]


class WorkerEmbedder(Engine[str, "NDArray[np.float32]"]):
    """`Embedder` over the model worker.

    Args:
        client: The worker.
        name: Name of the model.
        dim: Length of its vectors, from its configuration.
        fingerprint: Identity of its vector space.
        window_tokens: Longest text that it reads.
    """

    def __init__(self, client: WorkerClient, *, name: str, dim: int, fingerprint: str, window_tokens: int) -> None:
        super().__init__(client, name, BatchQueue(budget=2048, max_calls=1024))
        self._dim = dim
        self._fingerprint = fingerprint
        self._window_tokens = window_tokens
        client.listen("embedder", self)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._status.model

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self._dim

    @property
    def fingerprint(self) -> str:
        """Identity of the vector space."""
        return self._fingerprint

    async def embed(
        self, texts: Sequence[str], *, priority: Priority, deadline_s: float | None = None
    ) -> NDArray[np.float32]:
        """Embed texts; see `Embedder.embed`."""
        self._check_available()
        if not texts:
            return np.empty((0, self._dim), dtype=np.float32)
        loop = asyncio.get_running_loop()
        until_s = None if deadline_s is None else time.monotonic() + deadline_s
        # What the window cuts need not travel: no script needs more than 12 bytes a word piece on average.
        longest = 12 * self._window_tokens
        calls: list[Pending[str, NDArray[np.float32]]] = []
        for text in texts:
            size = min(len(text) // BYTES_PER_TOKEN + 3, self._window_tokens)
            check_text(text)
            calls.append(Pending(text[:longest], size, priority, until_s, loop.create_future()))
        return np.stack(await self._ask(calls, deadline_s))

    def _frame(self, request_id: int, batch: list[Pending[str, NDArray[np.float32]]]) -> protocol.Embed:
        return protocol.Embed(request_id, int(batch[0].priority), [call.question for call in batch])

    def _deliver(self, batch: list[Pending[str, NDArray[np.float32]]], got: Answer, _: float, /) -> None:
        if not isinstance(got, protocol.Vectors):
            raise WrongShapeError("vectors", type(got).__name__)
        vectors = got.array()
        # Case E3: n texts must give n vectors, or a text gets another's.
        if vectors.shape != (len(batch), self._dim):
            raise WrongShapeError(f"({len(batch)}, {self._dim})", str(vectors.shape))
        if not np.isfinite(vectors).all():
            raise WrongShapeError("finite numbers", "NaN or infinity")
        for call, vector in zip(batch, vectors, strict=True):
            call.resolve(vector)
