"""The embedder as the domain sees it, answered by model workers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from clag_server.models import protocol
from clag_server.models.api import Priority, Usage
from clag_server.models.batching import BatchQueue, Pending
from clag_server.models.dispatch import Dispatcher
from clag_server.models.engine import BATCHES_IN_HAND, BYTES_PER_TOKEN, Engine, check_text, pending
from clag_server.models.errors import WrongShapeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from clag_server.models.client import Answer, WorkerClient
    from clag_server.models.lanes import Lane

__all__ = ["WorkerEmbedder"]


class WorkerEmbedder(Engine):
    """`Embedder` over model workers.

    Args:
        clients: The workers.
        name: Name of the model.
        dim: Length of its vectors, from its configuration.
        fingerprint: Identity of its vector space.
        window_tokens: Tokens that it reads at once.
        windows: Windows of one text; the rest of a longer one is left out.
    """

    def __init__(
        self,
        clients: Sequence[WorkerClient],
        *,
        name: str,
        dim: int,
        fingerprint: str,
        window_tokens: int,
        windows: int = 1,
    ) -> None:
        super().__init__(clients, kind="embedder", model=name)
        self._dim = dim
        self._fingerprint = fingerprint
        self._most_tokens = window_tokens * windows
        self._lanes.watch(self._set_budget)  # before the dispatcher's own: it sends at once
        self._dispatcher: Dispatcher[str, NDArray[np.float32]] = Dispatcher(
            self._lanes,
            BatchQueue(budget=2048, max_calls=1024),
            frame=_frame,
            deliver=self._deliver,
            in_hand=lambda _: BATCHES_IN_HAND,
            key=str,
        )

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
        if not texts:
            self._lanes.check_available()
            return np.empty((0, self._dim), dtype=np.float32)
        # What the windows cut need not travel: no script needs more than 12 bytes a word piece on average.
        longest = 12 * self._most_tokens
        calls: list[Pending[str, NDArray[np.float32]]] = []
        with self._metered():
            for text in texts:
                check_text(text)
        for text in texts:
            size = min(len(text) // BYTES_PER_TOKEN + 3, self._most_tokens)
            calls.append(pending(text[:longest], size, priority, deadline_s))
        rows: list[NDArray[np.float32]] = await self._ask(self._dispatcher, calls, deadline_s)
        return np.stack(rows)

    def _waiting(self) -> Counter[str]:
        return Counter(self._dispatcher.queue.waiting())

    def _set_budget(self, lane: Lane) -> None:
        if lane.loaded is not None:
            self._dispatcher.queue.budget = lane.loaded.batch_tokens

    def _deliver(self, batch: list[Pending[str, NDArray[np.float32]]], got: Answer, sent_at_s: float) -> None:
        if not isinstance(got, protocol.Vectors):
            raise WrongShapeError("vectors", type(got).__name__)
        vectors = got.array()
        # Case E3: n texts must give n vectors, or a text gets another's.
        if vectors.shape != (len(batch), self._dim):
            raise WrongShapeError(f"({len(batch)}, {self._dim})", str(vectors.shape))
        if not np.isfinite(vectors).all():
            raise WrongShapeError("finite numbers", "NaN or infinity")
        for i, (call, vector) in enumerate(zip(batch, vectors, strict=True)):
            call.resolve(vector)
            # The worker counts tokens by batch; they are added once.
            tokens = got.tokens_in if i == 0 else 0
            queue_s = max(sent_at_s - call.queued_at_s, 0.0)
            self._meter.answered(Usage(tokens, 0, queue_s, got.compute_s, len(batch)))


def _frame(request_id: int, batch: list[Pending[str, NDArray[np.float32]]]) -> protocol.Embed:
    return protocol.Embed(request_id, int(batch[0].priority), [call.question for call in batch])
