"""What starts a re-organization by itself: new memories, rounds, growth, a schedule, a switch of the scene.

Where settings allow it. What is counted since the last one is in the catalog (memories ever stored, numbers of
episodes, clusters) and in the operation that was the last, so a restart changes nothing. A namespace in which
little is new is left alone, and so is one that nobody has open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from clag_server.catalog.api import Catalog
from clag_server.memory.config import OrganizeConfig
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.operations import Operations
from clag_server.memory.registry import NamespaceRegistry
from clag_server.memory.reorganizing.service import ReorganizeRequest, Reorganizing
from clag_server.models.api import ModelUnavailableError
from clag_server.types.errors import ClagError, OperationRunning
from clag_server.types.operation import BASE, JsonValue, OperationKind

__all__ = ["ReorganizeTriggers"]

_log = structlog.get_logger(__name__)

_PAGE = 100

_LEAST_CLUSTERS = 8
"""Fewer clusters than this are no growth worth a look."""


@dataclass(frozen=True, slots=True)
class _Base:
    """What there was when the last re-organization began (memories, episodes) and ended (clusters)."""

    created: int = 0
    episodes: int = 0
    clusters: int = 0
    time_ns: int = 0


class ReorganizeTriggers:
    """Starts re-organizations as a client would. `start` once, `stop` at the end.

    Args:
        registry: The namespaces at work.
        reorganizing: Begins them.
        operations: Knows the last ones.
        catalog: The system of record.
        config: What starts one.
        now_ns: The wall clock.
    """

    def __init__(
        self,
        registry: NamespaceRegistry,
        *,
        reorganizing: Reorganizing,
        operations: Operations,
        catalog: Catalog,
        config: OrganizeConfig,
        now_ns: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._reorganizing = reorganizing
        self._operations = operations
        self._catalog = catalog
        self._config = config
        self._now_ns = now_ns
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start looking."""
        self._task = asyncio.create_task(self._look(), name="look for reasons to re-organize")

    async def stop(self) -> None:
        """Stop looking; operations that were started go their own way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def once(self) -> list[str]:
        """Look at every open namespace; returns the operations that were started."""
        started = []
        for pipeline in self._registry.running():
            if pipeline.running and self._allowed(pipeline.state):
                why = await self._reason(pipeline.state)
                if why:
                    started.append(await self._start(pipeline.state, why))
        return [operation_id for operation_id in started if operation_id]

    async def scene_switched(self, namespace: str) -> str:
        """Hear that a client's scene changed; returns the operation that was started for that, "" for none."""
        pipeline = self._registry.opened(namespace)
        if pipeline is None or not self._config.reorganize_on_scene or not self._allowed(pipeline.state):
            return ""
        rows = await self._catalog.stats(pipeline.state.ns)
        base = await self._base(pipeline.state.ns)
        if rows.created - base.created < max(self._config.reorganize_least, 1):
            return ""
        return await self._start(pipeline.state, "the scene changed")

    def _allowed(self, state: NamespaceState) -> bool:
        own = state.namespace.settings.auto_reorganize
        return self._config.reorganize_auto if own is None else own

    async def _reason(self, state: NamespaceState) -> str:
        """Say why a re-organization is due, "" when it is not."""
        config = self._config
        rows = await self._catalog.stats(state.ns)
        base = await self._base(state.ns)
        new = rows.created - base.created
        if new < max(config.reorganize_least, 1):
            return ""
        if config.reorganize_memories and new >= config.reorganize_memories:
            return f"{new} new memories"
        rounds = state.map.next_numbers[1] - max(base.episodes, 1)
        if config.reorganize_rounds and rounds >= config.reorganize_rounds:
            return f"{rounds} new episodes"
        enough = max((1 + config.reorganize_growth) * base.clusters, _LEAST_CLUSTERS)
        if config.reorganize_growth and rows.clusters >= enough:
            return f"{rows.clusters} clusters, {base.clusters} after the last one"
        waited_s = (self._now_ns() - (base.time_ns or state.namespace.create_time_ns)) / 1e9
        if config.reorganize_every_s and waited_s >= config.reorganize_every_s:
            return f"it is {waited_s:.0f} s since the last one"
        return ""

    async def _base(self, ns: int) -> _Base:
        """Return where the last re-organization began; zeros where there was none."""
        before = ""
        while True:
            page = await self._operations.list(ns=ns, before=before, limit=_PAGE)
            for operation in page:
                base = operation.progress.get(BASE)
                if operation.kind is OperationKind.REORGANIZE and isinstance(base, dict):
                    after = operation.result.get("clusters_after", base.get("clusters"))
                    return _Base(
                        created=_whole(base.get("created")),
                        episodes=_whole(base.get("episodes")),
                        clusters=_whole(after),
                        time_ns=_whole(base.get("time_ns")),
                    )
            if len(page) < _PAGE:
                return _Base()
            before = page[-1].operation_id

    async def _start(self, state: NamespaceState, why: str) -> str:
        try:
            begun = await self._reorganizing.begin(state.namespace.name, ReorganizeRequest(trigger=why))
        except OperationRunning:
            return ""
        _log.info("re-organization started", namespace=state.namespace.name, reason=why)
        return begun.operation_id

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._config.reorganize_check_s)
            try:
                await self.once()
            except (ClagError, ModelUnavailableError) as error:
                _log.warning("no look for reasons to re-organize", reason=str(error))
            except Exception:  # noqa: BLE001 - a fault in one look must not end all later ones
                _log.exception("a look for reasons to re-organize failed")


def _whole(value: JsonValue) -> int:
    return value if isinstance(value, int) else 0
