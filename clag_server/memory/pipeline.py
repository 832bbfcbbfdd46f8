"""The pipeline of one namespace: three loops that bring memories from STORED to EVOLVED, and close idle episodes.

The catalog's states are the queue, so a restart resumes where it stopped. Each loop survives the failures it can
wait out (a model that loads, a full disk) and says so in the log; any other fault is logged with its traceback and
the step is tried again, later and later.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

import structlog

from clag_server.memory.config import IngestConfig
from clag_server.memory.embedding import EmbedStage
from clag_server.memory.evolving import EvolveStage
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.profiling import ProfileStage
from clag_server.memory.progress import KeyProgress, ProgressHub
from clag_server.memory.vote_stage import VoteStage
from clag_server.models.absent import AbsentSlm
from clag_server.models.api import Embedder, ModelTimeoutError, ModelUnavailableError, Priority, SlmEngine
from clag_server.types.errors import NamespaceDeleted, StorageFailed
from clag_server.types.ingest import AckLevel
from clag_server.types.memory import MemoryState

_log = structlog.get_logger(__name__)
_RETRY_S = 2.0
"""Pause before a loop looks again at what it had to leave: a failed attempt, an SLM that was away."""
_MAX_PAUSE_S = 5.0
_SOON_S = 0.05
_YIELD_S = 2.0
"""Longest time that organizing stands back while memories wait to be searchable: first found, then organized."""


class NamespacePipeline:
    """Runs the stages of one namespace. `start` once, `stop` at the end."""

    def __init__(
        self,
        state: NamespaceState,
        *,
        embedder: Embedder,
        slm: SlmEngine | None,
        hub: ProgressHub,
        config: IngestConfig,
    ) -> None:
        self.state = state
        self._config = config
        self._hub = hub
        state.has_slm = slm is not None and not isinstance(slm, AbsentSlm)
        self._votes = VoteStage(state, slm=slm)
        self._evolve = EvolveStage(state, slm=slm, hub=hub)
        self._profiles = ProfileStage(state, slm=slm)
        self._embed = EmbedStage(
            state,
            embedder=embedder,
            hub=hub,
            config=config,
            on_placed=self._evolve.rewind,
        )
        self._embed_wake = asyncio.Event()
        self._organize_wake = asyncio.Event()
        self._vote_wake = asyncio.Event()
        self._embedded = asyncio.Condition()
        self._interactive = 0
        self._organized_at = 0.0
        self._later: dict[int, None] = {}
        """Keys in order of arrival; a dictionary, so that the first ones are at hand."""
        self._ended_sessions: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.deleted = asyncio.Event()
        """Set when the namespace is being deleted: whoever waits here waits in vain."""

    def start(self) -> None:
        """Start the loops (needs a running event loop)."""
        name = self.state.namespace.name
        for loop, label in ((self._embed_loop, "embed"), (self._evolve_loop, "evolve"), (self._vote_loop, "vote")):
            self._tasks.append(asyncio.create_task(loop(), name=f"{label}:{name}"))
        self._embed_wake.set()
        self._organize_wake.set()

    @property
    def running(self) -> bool:
        """Whether memories are brought on: not in maintenance, and not while they are of another embedder."""
        return bool(self._tasks)

    async def stop(self) -> None:
        """Cancel the loops; a transaction that has begun is finished by the catalog."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self._embed.stop()
        await self._evolve.stop()

    def stored(self, keys: Sequence[int], *, later: bool = False) -> None:
        """Say that memories were stored. `later`: evolve them only when nothing else waits."""
        if later:
            self._later.update(dict.fromkeys(keys))
        self._embed_wake.set()

    def edited(self) -> None:
        """Say that memories or profiles await work after an edit."""
        self._evolve.rewind()
        self._embed_wake.set()
        self._organize_wake.set()

    def trust_learned(self) -> None:
        """Say that it is known now how far the SLM is trusted: what waits for it may be decided."""
        self._vote_wake.set()

    def gone(self, keys: Collection[int]) -> None:
        """Say that memories were deleted: nothing waits for them any more."""
        for key in keys:
            self._later.pop(key, None)
        self._hub.publish(
            KeyProgress(key, AckLevel.ORGANIZED, None, MemoryState.QUARANTINED, "deleted") for key in keys
        )
        self._organize_wake.set()

    async def reached(self, key: int, level: AckLevel) -> None:
        """Wait until a memory reached the level. Raises NamespaceDeleted when the namespace goes meanwhile."""
        if level <= AckLevel.DURABLE:
            return
        reached = asyncio.Event()

        def listener(progress: KeyProgress) -> None:
            if progress.level >= level:
                reached.set()

        self._hub.listen(key, listener)
        try:
            await self._unless_deleted(reached)
        finally:
            self._hub.forget(key, listener)

    def end_sessions(self, sessions: frozenset[str]) -> None:
        """Close the sessions' open episodes once everything stored so far is embedded."""
        self._ended_sessions |= sessions
        self._embed_wake.set()

    async def end_episode(self, session: str, why: str) -> int | None:
        """Close a session's open episode with what is stored so far; returns it, None where none is open."""
        await self.wait_embedded(await self.state.catalog.revision())
        return next(iter(await self._close({session: why})), None)

    @contextlib.contextmanager
    def hurry(self) -> Iterator[None]:
        """While a caller waits for a memory of its own, embed with interactive priority."""
        self._interactive += 1
        try:
            yield
        finally:
            self._interactive -= 1

    async def wait_embedded(self, revision: int) -> None:
        """Wait until every memory stored up to the revision is embedded (or quarantined)."""
        while not self.deleted.is_set():
            waiting = await self.state.catalog.pending(
                self.state.ns, MemoryState.STORED, limit=1, now_ns=self.state.now_ns()
            )
            if not waiting or waiting[0].revision > revision:
                return
            self._embed_wake.set()
            async with self._embedded:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY_S):
                        await self._embedded.wait()
        raise NamespaceDeleted(self.state.namespace.name)

    async def _unless_deleted(self, event: asyncio.Event) -> None:
        waits = [asyncio.create_task(one.wait()) for one in (event, self.deleted)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if not event.is_set():
            raise NamespaceDeleted(self.state.namespace.name)

    async def _embed_loop(self) -> None:
        await self._forever(self._embed_wake, self._embed_step, self._embed_due_s)

    async def _evolve_loop(self) -> None:
        await self._forever(self._organize_wake, self._organize_step, lambda: None)

    async def _vote_loop(self) -> None:
        await self._forever(self._vote_wake, self._vote_step, lambda: self._votes.retry_s)

    async def _forever(
        self, wake: asyncio.Event, step: Callable[[], Awaitable[bool]], due_s: Callable[[], float | None]
    ) -> None:
        """Run steps while they do something, then sleep until woken or due; wait out what passes by itself.

        `due_s` says in how many seconds something comes due without anyone waking the loop, None for nothing: an
        idle namespace costs nothing.
        """
        pause = self._config.retry_base_s
        while True:
            wake.clear()
            try:
                while await step():
                    pause = self._config.retry_base_s
            except (ModelUnavailableError, ModelTimeoutError, StorageFailed) as error:
                _log.warning("pipeline waits", namespace=self.state.namespace.name, reason=str(error))
            except Exception:  # noqa: BLE001 - a fault in one batch must not stop a namespace for ever
                _log.exception("pipeline step failed", namespace=self.state.namespace.name)
            else:
                # Not wait_for: in Python 3.11 it swallows a cancellation that comes together with the event.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(due_s()):
                        await wake.wait()
                continue
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_S)

    async def _embed_step(self) -> bool:
        priority = Priority.INTERACTIVE if self._interactive else Priority.ORGANIZE
        # Those that end while the round looks for memories may have some that it does not see any more.
        ended = frozenset(self._ended_sessions)
        done = await self._embed.round(priority=priority)
        if done:
            async with self._embedded:
                self._embedded.notify_all()
            self._organize_wake.set()
            self._vote_wake.set()
            return True
        await self._close_episodes(ended)
        return False

    async def _vote_step(self) -> bool:
        """Settle some of what awaits the SLM; an episode that moved leaves two profiles to be written anew."""
        settled = await self._votes.round()
        if settled:
            self._organize_wake.set()
        return settled

    def _embed_due_s(self) -> float | None:
        """Return when the next failed attempt or idle episode comes due, None when there is none."""
        due = [_RETRY_S] if self._embed.retrying else []
        now = asyncio.get_running_loop().time()
        last_seen = [self.state.last_seen.get(session, now) for session in self.state.map.open_episodes]
        if last_seen:
            due.append(max(_SOON_S, min(last_seen) + self.state.organize.episode_idle_s - now))
        return min(due, default=None)

    async def _close_episodes(self, ended: frozenset[str]) -> None:
        """Close the episodes of ended sessions, and those that had no new member for a while."""
        state = self.state
        now = asyncio.get_running_loop().time()
        idle = {
            session
            for session in state.map.open_episodes
            if now - state.last_seen.setdefault(session, now) >= state.organize.episode_idle_s
        }
        closing = dict.fromkeys(ended, "session ended") | dict.fromkeys(idle - ended, "idle")
        await self._close(closing)
        self._ended_sessions -= ended
        state.last_seen = {s: t for s, t in state.last_seen.items() if s in state.map.open_episodes}

    async def _close(self, closing: Mapping[str, str]) -> list[int]:
        """Close the open episodes of sessions (session -> why); returns those that there were."""
        state = self.state
        if not any(session in state.map.open_episodes for session in closing):
            return []
        async with state.placing() as placer:
            open_ones = {s: state.map.open_episodes[s] for s in sorted(closing) if s in state.map.open_episodes}
            for session, number in open_ones.items():
                placer.close(number, closing[session])
        self._organize_wake.set()
        self._vote_wake.set()
        return list(open_ones.values())

    async def _organize_step(self) -> bool:
        """Evolve a batch and refresh due profiles; what may wait is evolved when nothing else is left."""
        now = asyncio.get_running_loop().time()
        if self._embed.behind and now - self._organized_at < _YIELD_S:
            await asyncio.sleep(_SOON_S)
            return True
        self._organized_at = now
        evolved = await self._evolve.round(skip=self._later.keys())
        refreshed = await self._profiles.round()
        if not evolved and self._later:
            batch = list(itertools.islice(self._later, self.state.organize.evolve_batch))
            for key in batch:
                del self._later[key]
            self._evolve.rewind(min(batch, default=0))
            evolved = await self._evolve.round(skip=self._later.keys(), patient=True)
        return bool(evolved or refreshed)
