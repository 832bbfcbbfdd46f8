"""What a catalog promises to who embeds a namespace again with another model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from clag_server.types.memory import Matrix

if TYPE_CHECKING:
    from clag_server.catalog.api import EmbedderPin


class EmbedderSwitch(Protocol):
    """The change of a namespace's embedding space."""

    async def switch_embedder(
        self,
        ns: int,
        embedder: EmbedderPin,
        vectors: Callable[[], Iterator[tuple[NDArray[np.int64], Matrix]]],
        *,
        now_ns: int,
    ) -> int:
        """Give a namespace another embedder and its placed memories their new vectors, in one transaction.

        `vectors` reads keys (n,) and unit rows (n, dim), some at a time; keys that are not placed (any more) are
        skipped. Sums of episodes and clusters are made anew; places, and with them placement ids, stay. A placed
        memory without a new vector loses its place and is STORED again. Client embeddings of the old space go.
        History says that each was embedded again. Returns how many have new vectors. Raises NamespaceDeleted, and
        OSError as `vectors` does, changing nothing.
        """
