"""Edits of clusters by hand: rename, pin, merge, split, move, archive; one transaction each.

An edit is drafted on the map without changing it, checked, committed with its history and the answer for retries,
and then the mirror reads again what the transaction touched.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from clag_server.catalog.api import Catalog
from clag_server.catalog.api_clusters import EditAnswer
from clag_server.memory.cluster_service import Edited, EditOptions, MemoryGroup, ProfileChange
from clag_server.memory.cluster_views import cluster_etag, views
from clag_server.memory.edit_commit import commit_draft
from clag_server.memory.edit_draft import EditDraft
from clag_server.memory.edit_steps import group_notes, part_by_likeness, written
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.registry import NamespaceRegistry
from clag_server.types.cluster import Cluster, ClusterEvent, ClusterHistoryEntry, ClusterNote, ClusterState
from clag_server.types.errors import (
    ClusterStateError,
    EtagMismatch,
    FieldViolation,
    InvalidField,
    NotFound,
)
from clag_server.types.memory import Memory, MemoryState

_BY_HAND = "edited by hand"


class ClusterEditing:
    """Implements `ClusterService`.

    Args:
        registry: Gives each edit its namespace.
        catalog: The system of record.
        now_ns: The wall clock.
    """

    def __init__(self, registry: NamespaceRegistry, *, catalog: Catalog, now_ns: Callable[[], int]) -> None:
        self._registry = registry
        self._catalog = catalog
        self._now_ns = now_ns

    async def update(self, namespace: str, cluster: int, change: ProfileChange, options: EditOptions) -> Edited:
        """Rename, re-describe, pin or unpin a cluster."""
        async with self._editing(namespace, options, cluster) as edit:
            if edit.answered is not None:
                return edit.answered
            old = edit.known(cluster)
            new = written(old, change)
            if new.title != old.title and any(
                other.title == new.title for n, other in edit.state.map.clusters.items() if n != cluster
            ):
                raise InvalidField(FieldViolation("cluster.title", "is the title of another cluster"))
            edit.draft.put(new)
            if change.fields:
                event = ClusterNote(
                    cluster, ClusterEvent.PROFILE, _BY_HAND, old_title=old.title, new_title=new.title
                )
                edit.draft.notes.append(event)
            if new.pinned != old.pinned:
                reason = "pinned by hand" if new.pinned else "unpinned by hand"
                edit.draft.notes.append(ClusterNote(cluster, ClusterEvent.PINNED, reason))
            return await edit.commit([cluster])

    async def merge(self, namespace: str, target: int, sources: Sequence[int], options: EditOptions) -> Edited:
        """Move all that is in the sources into the target and remove the sources."""
        if target in sources:
            raise InvalidField(FieldViolation("source_cluster_ids", "must not name the target"))
        async with self._editing(namespace, options, target) as edit:
            if edit.answered is not None:
                return edit.answered
            _require_active(edit.known(target))
            draft = edit.draft
            for source in sources:
                old = edit.known(source)
                for episode in sorted(edit.state.map.cluster_episodes[source]):
                    draft.move_episode(episode, target, f"cluster c{source} was merged into c{target} by hand")
                draft.remove(source)
                reason = f"merged into c{target} by hand"
                draft.notes.append(
                    ClusterNote(
                        source, ClusterEvent.MERGED, reason, (target,), old.memory_count, old_title=old.title
                    )
                )
            draft.put(replace(draft.cluster(target), profile_stale=True))
            draft.notes.append(
                ClusterNote(
                    target, ClusterEvent.MERGED, "others were merged into it by hand", tuple(sources), draft.moved
                )
            )
            return await edit.commit([target])

    async def split_into(self, namespace: str, cluster: int, parts: int, options: EditOptions) -> Edited:
        """Split a cluster by likeness; it keeps its number as the largest part."""
        async with self._editing(namespace, options, cluster) as edit:
            if edit.answered is not None:
                return edit.answered
            edit.known(cluster)
            born = await part_by_likeness(edit.draft, self._catalog, edit.state.ns, cluster, parts)
            edit.draft.notes += group_notes(edit.draft, cluster, born)
            return await edit.commit([cluster, *born])

    async def split_off(
        self, namespace: str, cluster: int, groups: Sequence[MemoryGroup], options: EditOptions
    ) -> Edited:
        """Make each group of a cluster's memories a cluster of its own; the rest stays."""
        async with self._editing(namespace, options, cluster) as edit:
            if edit.answered is not None:
                return edit.answered
            edit.known(cluster)
            born = []
            for number, group in enumerate(groups):
                members = await edit.placed(group.memory_ids)
                outside = [m.memory_id for m in members if m.cluster != cluster]
                if outside:
                    wrong = f"{outside[0]} is not in cluster c{cluster}"
                    raise InvalidField(FieldViolation(f"groups.groups[{number}].memory_ids", wrong))
                new = edit.draft.found(group.title)
                edit.draft.move_memories(members, new, f"split off cluster c{cluster} by hand")
                born.append(new)
            if edit.draft.cluster(cluster).memory_count <= 0:
                raise InvalidField(
                    FieldViolation("groups", f"must leave cluster c{cluster} a memory: they take all")
                )
            edit.draft.notes += group_notes(edit.draft, cluster, born)
            return await edit.commit([cluster, *born])

    async def move(self, namespace: str, target: int, memory_ids: Sequence[str], options: EditOptions) -> Edited:
        """Move memories to another cluster."""
        async with self._editing(namespace, options, target) as edit:
            if edit.answered is not None:
                return edit.answered
            _require_active(edit.known(target))
            draft = edit.draft
            members = await edit.placed(memory_ids)
            leaving = [member for member in members if member.cluster != target]
            draft.move_memories(leaving, target, f"moved to c{target} by hand")
            sources: dict[int, int] = {}
            for member in leaving:
                if member.cluster is not None:
                    sources[member.cluster] = sources.get(member.cluster, 0) + 1
            for source, count in sorted(sources.items()):
                draft.notes.append(
                    ClusterNote(source, ClusterEvent.MOVED, f"moved to c{target} by hand", (target,), count)
                )
            if leaving:
                reason = "moved in by hand"
                draft.notes.append(
                    ClusterNote(target, ClusterEvent.MOVED, reason, tuple(sorted(sources)), len(leaving))
                )
            return await edit.commit([target])

    async def archive(self, namespace: str, cluster: int, archived: bool, options: EditOptions) -> Edited:
        """Take a cluster out of default retrieval, or back into it.

        Its open episodes are closed first, so that what comes next does not vanish with it.
        """
        if archived and not options.preview:
            await self._close_episodes(namespace, cluster)
        async with self._editing(namespace, options, cluster) as edit:
            if edit.answered is not None:
                return edit.answered
            wanted = ClusterState.ARCHIVED if archived else ClusterState.ACTIVE
            old = edit.known(cluster)
            if old.state is not wanted:
                edit.draft.put(replace(old, state=wanted))
                event = ClusterEvent.ARCHIVED if archived else ClusterEvent.RESTORED
                edit.draft.notes.append(ClusterNote(cluster, event, _BY_HAND, memories=old.memory_count))
            return await edit.commit([cluster])

    async def history(
        self, namespace: str, cluster: int, *, before: int | None, limit: int
    ) -> Sequence[ClusterHistoryEntry]:
        """Page through what happened to a cluster; NotFound for a number that was never given out."""
        known = await self._catalog.get_namespace(namespace)
        if not 0 < cluster < known.next_cluster:
            raise NotFound("cluster", f"c{cluster}")
        return await self._catalog.cluster_history(known.ns, cluster, before=before, limit=limit)

    async def _close_episodes(self, namespace: str, cluster: int) -> None:
        state = (await self._registry.pipeline(namespace, create=False, check=False)).state
        async with state.placing() as placer:
            for number in sorted(state.map.cluster_episodes.get(cluster, ())):
                placer.close(number, "its cluster is archived")

    @asynccontextmanager
    async def _editing(self, namespace: str, options: EditOptions, edited: int) -> AsyncIterator[_Edit]:
        """Give an edit under the namespace's lock; its etag is checked, and whether it was answered before."""
        pipeline = await self._registry.pipeline(namespace, create=False, check=False)
        state = pipeline.state
        async with state.editing():
            edit = _Edit(state, self._catalog, options, EditDraft(state.map, self._now_ns()))
            await edit.find_answer()
            if edit.answered is None:
                current = cluster_etag(edit.known(edited))
                if options.etag and options.etag != current:
                    raise EtagMismatch(current)
            yield edit
        if not options.preview:
            pipeline.edited()  # profiles are written again


class _Edit:
    """One edit at work; the namespace's lock is held."""

    def __init__(self, state: NamespaceState, catalog: Catalog, options: EditOptions, draft: EditDraft) -> None:
        self.state = state
        self.draft = draft
        self.answered: Edited | None = None
        self._catalog = catalog
        self._options = options

    async def find_answer(self) -> None:
        """Look whether the request was answered before."""
        options = self._options
        if not options.request_id or options.preview:
            return
        text = await self._catalog.edit_answer(self.state.ns, options.request_id, options.digest)
        if text is not None:
            body = json.loads(text)
            known = [self.state.map.clusters[n] for n in body["clusters"] if n in self.state.map.clusters]
            # The newest revision: what is read at it holds the edit.
            revision = await self._catalog.revision()
            self.answered = Edited(await views(self._catalog, self.state, known), int(body["moved"]), revision)

    def known(self, number: int) -> Cluster:
        """Return a cluster as it is; NotFound."""
        cluster = self.state.map.clusters.get(number)
        if cluster is None:
            raise NotFound("cluster", f"c{number}")
        return cluster

    async def placed(self, memory_ids: Sequence[str]) -> Sequence[Memory]:
        """Return memories with embeddings. Raises NotFound, and ClusterStateError for one that has no place."""
        wanted = list(dict.fromkeys(memory_ids))
        found = await self._catalog.memories_by_id(self.state.ns, wanted, embeddings=True)
        missing = set(wanted) - {memory.memory_id for memory in found}
        if missing:
            raise NotFound("memory", min(missing))
        for memory in found:
            if memory.cluster is None or memory.embedding is None:
                why = "is quarantined" if memory.state is MemoryState.QUARANTINED else "is not embedded yet"
                raise ClusterStateError(f'memory "{memory.memory_id}" {why} and is in no cluster')
        return found

    async def commit(self, shown: Sequence[int]) -> Edited:
        """Commit the draft, or preview it; `shown` are the clusters to answer with (provisional numbers too)."""
        state, draft, options = self.state, self.draft, self._options
        if options.preview:
            clusters = [draft.cluster(number) for number in shown]
            return Edited(await views(self._catalog, state, clusters), draft.moved, 0)

        def answer(numbers: Mapping[int, int]) -> EditAnswer | None:
            if not options.request_id:
                return None
            body = {"clusters": [numbers.get(number, number) for number in shown], "moved": draft.moved}
            return EditAnswer(options.request_id, options.digest, json.dumps(body))

        revision, numbers = await commit_draft(state, self._catalog, draft, answer)
        real = [numbers.get(number, number) for number in shown]
        answered = [state.map.clusters[number] for number in real if number in state.map.clusters]
        return Edited(await views(self._catalog, state, answered), draft.moved, revision)


def _require_active(cluster: Cluster) -> None:
    if cluster.state is not ClusterState.ACTIVE:
        raise ClusterStateError(f"cluster c{cluster.cluster} is archived: restore it first")
