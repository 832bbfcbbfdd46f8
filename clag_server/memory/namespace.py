"""One namespace at work: its cluster map, the lock under which placements change, and its counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from clag_server.catalog.api import Catalog, EmbedderPin, Namespace
from clag_server.memory.cluster_map import ClusterMap
from clag_server.memory.competence import Competence
from clag_server.memory.config import OrganizeConfig
from clag_server.memory.counters import Counters, Outcome
from clag_server.memory.finished import finished
from clag_server.memory.order import OrderSignal
from clag_server.memory.placing import Placer
from clag_server.memory.profiles import blank
from clag_server.memory.routing_strategies import strategy_of
from clag_server.memory.time_left import StepDurations
from clag_server.types.cluster import PlacementPlan
from clag_server.types.competence import Skill
from clag_server.types.errors import EmbedderMismatch, Overloaded
from clag_server.types.memory import FallbackCause
from clag_server.types.namespace import RoutingUnit
from clag_server.types.routing import UnitSetting
from clag_server.vectors.api import VectorIndex

_UNDECIDED_A_READ = 10_000


class NamespaceState:
    """The domain's view of one namespace. Only this process writes its placements."""

    def __init__(
        self,
        namespace: Namespace,
        *,
        catalog: Catalog,
        index: VectorIndex,
        organize: OrganizeConfig,
        now_ns: Callable[[], int],
        competence: Competence | None = None,
    ) -> None:
        self.namespace = namespace
        self.ns = namespace.ns
        self.catalog = catalog
        self.index = index
        self.organize = organize
        self.now_ns = now_ns
        self.competence = competence or Competence(organize.trust, organize.choice)
        """How far the SLM is trusted; of the server, shared by all namespaces."""
        self.has_slm = True
        """Whether a language model is configured."""
        self.counters = Counters()
        self.durations = StepDurations()
        """What the steps of questions take here."""
        self.order = OrderSignal(catalog, namespace.ns)
        """How much the order of arrival says here."""
        self.lock = asyncio.Lock()
        """Held while placements are computed and committed, and while single memories are deleted."""
        self.map = ClusterMap(namespace.embedder.dim, (), ())
        self.last_seen: dict[str, float] = {}
        """Session -> monotonic seconds of its last placement, for closing idle episodes."""
        self.evolve_again = False
        """Set when memories moved that may have to evolve once more; the stage that evolves takes it back."""
        self.retired = False
        """Set when the namespace was changed as a whole: this view of it is of the past."""
        self._readers = 0
        self._unread = asyncio.Event()
        self._unread.set()
        self.batch_s = 0.0
        """How long the last batch of a delete held the lock, in seconds."""
        self.edited: dict[int, int] | None = None
        """Key -> revision of what clients changed or removed while a batch is embedded; None between batches.

        What was embedded of an older revision is of words that are gone, and must not be placed.
        """

    @property
    def dim(self) -> int:
        """Length of the namespace's vectors."""
        return self.namespace.embedder.dim

    @property
    def routing_unit(self) -> RoutingUnit:
        """What one routing decision is about: as the namespace says, else the server."""
        if self.namespace.settings.routing_unit is not None:
            return self.namespace.settings.routing_unit
        by_memory = self.organize.routing_unit is UnitSetting.MEMORY
        return RoutingUnit.MEMORY if by_memory else RoutingUnit.EPISODE

    def unasked(self) -> FallbackCause:
        """Why the SLM is not asked where memories belong; NONE when it is."""
        if not self.has_slm or not strategy_of(self.organize).asks_slm:
            return FallbackCause.DISABLED
        return FallbackCause.NONE if self.competence.trust.asked(Skill.ROUTING) else FallbackCause.NOT_TRUSTED

    async def load(self) -> None:
        """Mirror the catalog's episodes and clusters; the index is told to look at its outbox."""
        numbers = await self.catalog.get_namespace(self.namespace.name)
        episodes = await self.catalog.episodes(self.ns)
        clusters = await self.catalog.clusters(self.ns)
        # A second's work for a million memories: beside the loop.
        self.map = await asyncio.to_thread(
            ClusterMap,
            self.dim,
            episodes,
            clusters,
            next_episode=numbers.next_episode,
            next_cluster=numbers.next_cluster,
        )
        self.map.undecided = await self._undecided()
        now = time.monotonic()
        self.last_seen = dict.fromkeys(self.map.open_episodes, now)
        self.index.notify(self.ns, self.dim)

    async def _undecided(self) -> set[int]:
        """Episodes whose routing awaits the SLM."""
        found: list[int] = []
        while True:
            after = found[-1] if found else 0
            page = await self.catalog.undecided_episodes(self.ns, after=after, limit=_UNDECIDED_A_READ)
            found += page
            if len(page) < _UNDECIDED_A_READ:
                return set(found)

    def check_embedder(self, embedder: EmbedderPin) -> None:
        """Raise EmbedderMismatch unless the namespace's vectors are of this embedder (case E1)."""
        pinned = self.namespace.embedder
        if pinned.fingerprint != embedder.fingerprint or pinned.dim != embedder.dim:
            raise EmbedderMismatch(
                namespace=self.namespace.name,
                pinned=pinned.name,
                pinned_dim=pinned.dim,
                configured=embedder.name,
                dim=embedder.dim,
            )

    @contextmanager
    def read(self) -> Iterator[None]:
        """Count a reader of the map and the vectors while the block runs."""
        self._readers += 1
        self._unread.clear()
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._unread.set()

    async def unread(self, timeout_s: float) -> None:
        """Wait until nobody reads, but not longer than `timeout_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._unread.wait()

    @asynccontextmanager
    async def editing(self) -> AsyncIterator[None]:
        """Hold the lock; raises Overloaded, for a retry, where the namespace was changed as a whole meanwhile."""
        async with self.lock:
            if self.retired:
                raise Overloaded(f'namespace "{self.namespace.name}"')
            yield

    @asynccontextmanager
    async def placing(self) -> AsyncIterator[Placer]:
        """Give a Placer under the lock; leaving commits its plan, or reloads the map when that fails."""
        async with self.editing():
            placer = Placer(
                self.map,
                self.organize,
                now_ns=self.now_ns(),
                unit=self.routing_unit,
                unasked=self.unasked(),
            )
            try:
                yield placer
                await self.commit(placer.plan())
            except BaseException:
                await self.reload()
                raise
            self.map.undecided |= placer.undecided
            self.counters.add(Outcome.EPISODES_CLOSED, placer.closed)
            self.counters.add(Outcome.CLUSTERS_BORN, placer.born)
            self.counters.add(Outcome.CLUSTERS_SPLIT, placer.split)

    async def commit(self, plan: PlacementPlan) -> int:
        """Apply a plan in the catalog and wake the index; the lock must be held. Returns the revision.

        A cancelled caller does not cancel the transaction.
        """
        revision = await finished(self.catalog.apply_plan(self.ns, plan, now_ns=self.now_ns()))
        self.evolve_again |= any(move.again for move in plan.moves)
        self.index.notify(self.ns, self.dim)
        return revision

    async def refresh(self, *, episode: int | None, cluster: int | None) -> None:
        """Read one episode and one cluster again after the catalog changed them (delete); lock must be held."""
        await self.mirror(
            episodes=() if episode is None else (episode,), clusters=() if cluster is None else (cluster,)
        )

    async def mirror(self, *, episodes: Collection[int], clusters: Collection[int]) -> None:
        """Read episodes and clusters again after the catalog changed, made or removed them; lock must be held."""
        try:
            found_episodes = {e.episode: e for e in await self.catalog.episodes(self.ns, sorted(episodes))}
            found_clusters = {c.cluster: c for c in await self.catalog.clusters(self.ns, sorted(clusters))}
            for number in episodes:
                if number in found_episodes:
                    self.map.put_episode(found_episodes[number])
                else:
                    self.map.remove_episode(number)
            for number in clusters:
                if number in found_clusters:
                    self.map.put_cluster(found_clusters[number])
                else:
                    self.map.remove_cluster(number)
        except BaseException:
            # What was committed is not undone by a fault here: a half-read map would be wrong until the next start.
            await self.reload()
            raise
        self.index.notify(self.ns, self.dim)

    async def drop_empty(self, clusters: Collection[int]) -> None:
        """Remove those of the clusters that hold no memory any more, with their profiles; the lock must be held.

        A profile is made of the memories' words, so it must not outlive them. A pinned cluster stays: what the
        server wrote of it is made blank.
        """
        found = [self.map.clusters[n] for n in sorted(clusters) if n in self.map.clusters]
        empty = [cluster for cluster in found if cluster.memory_count == 0]
        removed = [cluster.cluster for cluster in empty if not cluster.pinned]
        if removed:
            for number in removed:
                for episode in tuple(self.map.cluster_episodes.get(number, ())):
                    self.map.remove_episode(episode)
                self.map.remove_cluster(number)
            await self.commit(PlacementPlan(removed_clusters=removed))
        pinned = [blank(cluster) for cluster in empty if cluster.pinned]
        if pinned:
            await asyncio.shield(self.catalog.put_clusters(self.ns, pinned))
            for cluster in pinned:
                self.map.put_cluster(cluster)

    async def reload(self) -> None:
        """Load the map again; when even that fails the next placement's commit will say so."""
        seen = self.last_seen
        await self.load()
        self.last_seen.update({s: t for s, t in seen.items() if s in self.map.open_episodes})
