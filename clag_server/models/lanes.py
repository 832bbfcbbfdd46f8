"""The workers as one model sees them: which of them answer, and how the model stands over all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from clag_server.children import ChildState, ChildStatus
from clag_server.models.errors import ModelUnavailableError
from clag_server.models.status import EngineState, EngineStatus

if TYPE_CHECKING:
    from clag_server.models import protocol
    from clag_server.models.client import WorkerClient

__all__ = ["Lane", "Lanes"]


class Lane:
    """One worker, for one model. Hears what happens to the model there."""

    def __init__(self, client: WorkerClient, changed: Callable[[Lane], None]) -> None:
        self.client = client
        self._changed = changed
        self.state = EngineState.LOADING
        self.reason = "its process is starting"
        self.loaded: protocol.Loaded | None = None
        self.loads = 0

    @property
    def ready(self) -> bool:
        """Whether it answers."""
        return self.state is EngineState.READY

    def on_loaded(self, loaded: protocol.Loaded) -> None:
        """Hear that the model answers now."""
        self.loaded = loaded
        self.loads += 1
        self._set(EngineState.READY, "")

    def on_not_loaded(self, reason: str) -> None:
        """Hear that the model cannot be loaded."""
        self._set(EngineState.ABSENT, reason)

    def on_progress(self, step: str) -> None:
        """Hear what is done to load the model."""
        if self.state is EngineState.LOADING:
            self.reason = step

    def on_worker(self, status: ChildStatus) -> None:
        """Hear that the worker's state changed."""
        if status.state is ChildState.READY:
            return  # `on_loaded` follows for each model
        if status.state is ChildState.STARTING:
            self._set(EngineState.LOADING, status.reason or "its process is starting")
            return
        failed = status.state in (ChildState.FAILED, ChildState.STOPPED)
        self._set(EngineState.ABSENT if failed else EngineState.DEGRADED, status.reason)

    def _set(self, state: EngineState, reason: str) -> None:
        self.state, self.reason = state, reason
        self._changed(self)


class Lanes:
    """All workers of one model.

    Args:
        clients: The workers, at least one.
        kind: What the workers call the model, `embedder` or `slm`.
        model: Its name, for people.
    """

    def __init__(self, clients: Sequence[WorkerClient], *, kind: str, model: str) -> None:
        self.model = model
        self._watchers: list[Callable[[Lane], None]] = []
        self._settled = asyncio.Event()
        self._all = [Lane(client, self._changed) for client in clients]
        for lane in self._all:
            lane.client.listen(kind, lane)

    def watch(self, changed: Callable[[Lane], None]) -> None:
        """Call `changed` with every lane that becomes ready or stops to be."""
        self._watchers.append(changed)

    @property
    def ready(self) -> list[Lane]:
        """Workers that answer."""
        return [lane for lane in self._all if lane.ready]

    @property
    def state(self) -> EngineState:
        """How the model stands: the best of what its workers say."""
        return self._best.state

    @property
    def loads(self) -> int:
        """How often a worker loaded the model."""
        return sum(lane.loads for lane in self._all)

    def status(self, *, queue_depth: int) -> EngineStatus:
        """How the model stands, for people."""
        best = self._best
        loaded = [lane.loaded for lane in self._all if lane.loaded is not None]
        devices = dict.fromkeys(one.device for one in loaded)
        return EngineStatus(
            best.state,
            self.model,
            best.reason,
            ", ".join(devices),
            loaded[0].dtype if loaded else "",
            self.loads,
            sum(lane.client.child.restarts for lane in self._all),
            queue_depth,
            max((one.load_s for one in loaded), default=0.0),
        )

    @property
    def prefix_hits(self) -> int:
        """Kept heads and beginnings that were used, over all workers."""
        return sum(lane.client.beat.prefix_hits for lane in self._all)

    @property
    def prefix_misses(self) -> int:
        """Heads and beginnings that had to be read."""
        return sum(lane.client.beat.prefix_misses for lane in self._all)

    async def wait_settled(self) -> None:
        """Wait until the model is no longer LOADING."""
        await self._settled.wait()

    def check_available(self) -> None:
        """Refuse calls that no worker will answer soon.

        Raises:
            ModelUnavailableError: No worker answers or loads.
        """
        if self.state in (EngineState.ABSENT, EngineState.DEGRADED):
            raise self.unavailable()

    def unavailable(self) -> ModelUnavailableError:
        """Return the error that says why the model does not answer."""
        best = self._best
        if best.state is EngineState.ABSENT:
            return ModelUnavailableError(f"{self.model}: {best.reason}")
        return best.client.unavailable()

    @property
    def _best(self) -> Lane:
        return min(self._all, key=lambda lane: _ORDER[lane.state])

    def _changed(self, lane: Lane) -> None:
        if self.state is EngineState.LOADING:
            self._settled.clear()
        else:
            self._settled.set()
        for watcher in self._watchers:
            watcher(lane)


_ORDER = {EngineState.READY: 0, EngineState.LOADING: 1, EngineState.DEGRADED: 2, EngineState.ABSENT: 3}
