"""Rebuilding the vector index of a namespace on demand, from the stored vectors or from new ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from clag_server.catalog.api import Catalog
from clag_server.memory.operations import OperationRun, Operations, new_operation
from clag_server.memory.reembedding import Reembedding
from clag_server.memory.registry import NamespaceRegistry
from clag_server.types.errors import EmbedderNotServed, NamespaceDeleted, OperationRunning
from clag_server.types.operation import JsonValue, Operation, OperationKind
from clag_server.vectors.api import VectorIndex

__all__ = ["Reindexing"]

_LOOK_EVERY_S = 0.1


class Reindexing:
    """Begins and runs REINDEX and REEMBED operations.

    Args:
        registry: The namespaces at work.
        catalog: The system of record.
        index: The vector index.
        operations: Runs them.
        reembedding: Embeds again.
        now_ns: The wall clock.
    """

    def __init__(
        self,
        registry: NamespaceRegistry,
        *,
        catalog: Catalog,
        index: VectorIndex,
        operations: Operations,
        reembedding: Reembedding,
        now_ns: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._catalog = catalog
        self._index = index
        self._operations = operations
        self._now_ns = now_ns
        self._asking = asyncio.Lock()
        operations.register(OperationKind.REINDEX, self._run_reindex)
        operations.register(OperationKind.REEMBED, reembedding.run)

    async def begin(self, name: str, *, embedding_model: str) -> Operation:
        """Begin a rebuild; with the server's embedder, and a namespace of another, a re-embedding.

        Raises NotFound, NamespaceDeleted, EmbedderNotServed, OperationRunning.
        """
        async with self._asking:
            namespace = await self._catalog.get_namespace(name)
            if namespace.deleting:
                raise NamespaceDeleted(name)
            pin = self._registry.pin()
            if embedding_model not in ("", pin.name):
                raise EmbedderNotServed(asked=embedding_model, configured=pin.name)
            running = await self._operations.unfinished(
                namespace.ns, [OperationKind.REINDEX, OperationKind.REEMBED]
            )
            if running is not None:
                raise OperationRunning(running.operation_id)
            mine = (namespace.embedder.fingerprint, namespace.embedder.dim) == (pin.fingerprint, pin.dim)
            again = bool(embedding_model) and not mine
            if again:
                self._registry.embed_again(name, running=True)  # the next call is served already
            return await self._operations.submit(
                new_operation(
                    OperationKind.REEMBED if again else OperationKind.REINDEX,
                    ns=namespace.ns,
                    namespace=name,
                    request={"embedding_model": pin.name, "fingerprint": pin.fingerprint} if again else {},
                    now_ns=self._now_ns(),
                )
            )

    async def _run_reindex(self, run: OperationRun) -> Mapping[str, JsonValue]:
        """Have the index rebuilt and tell its progress; run again, it rebuilds again."""
        pipeline = await self._registry.pipeline(run.operation.namespace, create=False, check=False)
        state = pipeline.state
        await run.report("rebuilding", done=0, total=0)
        await self._index.rebuild(state.ns, state.dim)
        settling = asyncio.create_task(self._index.settle(state.ns))
        try:
            while not settling.done():
                await asyncio.wait([settling], timeout=_LOOK_EVERY_S)
                status = self._index.namespace_status(state.ns)
                await run.report("rebuilding", done=status.done, total=status.total)
            await settling
        finally:
            settling.cancel()
        rows = (await self._catalog.index_head(state.ns)).placed
        return {"memories": rows, "embedding_model": state.namespace.embedder.name}
