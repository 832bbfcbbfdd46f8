"""Namespaces as a whole: created, set, deleted with all that is in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from clag_server.catalog.api import Catalog, Namespace
from clag_server.memory.episode_cache import EpisodeCache
from clag_server.memory.operations import OperationRun, Operations, new_operation
from clag_server.memory.registry import NamespaceRegistry
from clag_server.types.errors import EmbedderNotServed, EtagMismatch, NotFound
from clag_server.types.namespace import NamespaceSettings
from clag_server.types.operation import JsonValue, Operation, OperationKind
from clag_server.vectors.api import VectorIndex

__all__ = ["Namespaces"]

_log = structlog.get_logger(__name__)

PURGE_ROWS: Final = 500
"""Rows of a deleted namespace that go in one transaction: others' writes wait for some milliseconds."""

_PAUSE_S: Final = 0.005
_TRIES: Final = 8


class Namespaces:
    """Creates, sets and deletes namespaces.

    Args:
        registry: The namespaces at work.
        catalog: The system of record.
        index: The vector index.
        cache: Vectors of recent episodes.
        operations: Runs deletions.
        now_ns: The wall clock.
    """

    def __init__(
        self,
        registry: NamespaceRegistry,
        *,
        catalog: Catalog,
        index: VectorIndex,
        cache: EpisodeCache,
        operations: Operations,
        now_ns: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._catalog = catalog
        self._index = index
        self._cache = cache
        self._operations = operations
        self._now_ns = now_ns
        self._deleting = asyncio.Lock()
        operations.register(OperationKind.DELETE_NAMESPACE, self._run_delete, cancellable=False)

    async def get(self, name: str) -> Namespace:
        """Return a namespace, also one that is being deleted. Raises NotFound."""
        return await self._catalog.get_namespace(name)

    async def list(self) -> Sequence[Namespace]:
        """All namespaces by name, those included that are being deleted."""
        return await self._catalog.list_namespaces()

    async def create(self, name: str, settings: NamespaceSettings, *, embedding_model: str) -> Namespace:
        """Create a namespace for the server's embedder.

        Raises:
            AlreadyExists: it is there, or is being deleted.
            EmbedderNotServed: another embedder is asked for than the server's.
            NamespaceLimit: the server has as many as it may have.
        """
        pin = self._registry.pin()
        if embedding_model not in ("", pin.name):
            raise EmbedderNotServed(asked=embedding_model, configured=pin.name)
        await self._registry.check_room(name)
        return await self._catalog.create_namespace(name, pin, settings, now_ns=self._now_ns())

    async def update(
        self, name: str, revise: Callable[[NamespaceSettings], NamespaceSettings], *, etag: str
    ) -> Namespace:
        """Change settings: `revise` gives them as they will be.

        Raises NotFound, NamespaceDeleted, EtagMismatch.
        """
        for _ in range(_TRIES):
            namespace = await self._catalog.get_namespace(name)
            current = str(namespace.revision)
            if etag and etag != current:
                raise EtagMismatch(current)
            try:
                changed = await self._catalog.update_namespace(
                    namespace.ns, revise(namespace.settings), etag=current, now_ns=self._now_ns()
                )
            except EtagMismatch:
                if etag:
                    raise
                continue
            self._registry.renewed(changed)
            return changed
        raise EtagMismatch(str((await self._catalog.get_namespace(name)).revision))

    async def delete(self, name: str) -> Operation:
        """Begin the deletion of a namespace; one that is being deleted gives the operation that does it.

        From now on its calls are turned away, and its open streams end. Raises NotFound.
        """
        async with self._deleting:  # two calls at once must not begin two deletions
            namespace = await self._catalog.get_namespace(name)
            running = await self._operations.unfinished(namespace.ns, [OperationKind.DELETE_NAMESPACE])
            if running is not None:
                return running
            await self._catalog.mark_deleting(namespace.ns, now_ns=self._now_ns())
            return await self._operations.submit(self._operation(namespace))

    async def resume(self) -> None:
        """Begin the deletion of what a crash left marked without an operation."""
        for namespace in await self._catalog.list_namespaces():
            if namespace.deleting and not await self._operations.unfinished(
                namespace.ns, [OperationKind.DELETE_NAMESPACE]
            ):
                await self._operations.submit(self._operation(namespace))

    def _operation(self, namespace: Namespace) -> Operation:
        return new_operation(
            OperationKind.DELETE_NAMESPACE,
            ns=namespace.ns,
            namespace=namespace.name,
            request={},
            now_ns=self._now_ns(),
        )

    async def _run_delete(self, run: OperationRun) -> Mapping[str, JsonValue]:
        """Stop what works on the namespace, then drop its index and purge its rows, a bounded number at a time."""
        operation = run.operation
        ns, name = operation.ns, operation.namespace
        if ns is None:
            raise NotFound("namespace", name)
        await self._registry.close(name, leaving=True)
        await self._operations.end_all_of(ns, but=operation.operation_id)
        await run.report("dropping the index", done=0, total=0)
        await self._index.drop(ns)
        self._cache.drop(ns)
        total, done = 0, 0
        try:
            total = sum((await self._catalog.stats(ns)).by_state.values())
        except NotFound:  # a restart came after the last row
            _log.info("namespace was purged before", namespace=name)
        while gone := await self._catalog.purge_namespace(ns, limit=PURGE_ROWS):
            done += gone
            # Rows of all tables are counted, memories are the total that a reader understands.
            await run.report("removing rows", done=min(done, total), total=total)
            await asyncio.sleep(_PAUSE_S)
        self._registry.forget_leaving(name)
        return {}
