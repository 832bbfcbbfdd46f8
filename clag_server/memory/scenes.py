"""Scenes: a client says that the agent is elsewhere now, and the session's open episode ends there."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from clag_server.catalog.api import Catalog
from clag_server.memory.registry import NamespaceRegistry


class SceneSignal(enum.IntEnum):
    """What a client tells about its scene (numbers as in `clag.v1.SceneSignal`)."""

    SCENE_SWITCH = 1
    SESSION_END = 2


@dataclass(frozen=True, slots=True)
class SceneClosed:
    """The episode that was closed (None: none), the revision, and the re-organization that began ("": none)."""

    episode: int | None
    revision: int
    operation_id: str = ""


class Scenes:
    """Closes episodes on request.

    Args:
        registry: Gives each signal its namespace.
        catalog: The system of record.
        switched: Hears of each namespace whose scene changed; gives the re-organization that it starts, or "".
    """

    def __init__(
        self, registry: NamespaceRegistry, *, catalog: Catalog, switched: Callable[[str], Awaitable[str]]
    ) -> None:
        self._registry = registry
        self._catalog = catalog
        self._switched = switched

    async def signal(self, namespace: str, session_id: str, signal: SceneSignal) -> SceneClosed:
        """Close the session's open episode, with everything that was stored before the signal.

        Waits until that is embedded. A session may go on afterwards: its next memory starts an episode. Raises
        NotFound, and EmbedderMismatch while the namespace is of another embedder.
        """
        pipeline = await self._registry.pipeline(namespace, create=False)
        why = "the scene changed" if signal is SceneSignal.SCENE_SWITCH else "the session ended"
        episode = await pipeline.end_episode(session_id, why)
        begun = await self._switched(namespace) if signal is SceneSignal.SCENE_SWITCH else ""
        return SceneClosed(episode, await self._catalog.revision(), begun)
