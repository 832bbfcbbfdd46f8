"""The part of the SQLite catalog that changes a namespace's embedder; the promise is said in `api_reembed`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from clag_server.catalog import reembed
from clag_server.catalog.api import EmbedderPin
from clag_server.catalog.sqlite_base import SqliteBase
from clag_server.types.memory import Matrix


class SqliteReembed(SqliteBase):
    """Implements `EmbedderSwitch`."""

    async def switch_embedder(
        self,
        ns: int,
        embedder: EmbedderPin,
        vectors: Callable[[], Iterator[tuple[NDArray[np.int64], Matrix]]],
        *,
        now_ns: int,
    ) -> int:
        """Switch a namespace to another embedder."""
        return await self._write(lambda tx: reembed.switch_embedder(tx, ns, embedder, vectors(), now_ns=now_ns))
