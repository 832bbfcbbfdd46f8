"""Applying a plan: what still holds of it, in one transaction, with its history.

Between planning and applying memories arrive, clusters are edited by hand, memories are deleted. Under the
namespace's lock every step is looked at again: an episode moves when it is still where the plan found it, a cluster
is touched when it is still there, active and not pinned. What no longer holds is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from clag_server.memory.cluster_map import ClusterMap
from clag_server.memory.edit_draft import EditDraft
from clag_server.memory.reorganizing.plan import Plan, PlanStep, StepKind
from clag_server.types.change import HistoryCause
from clag_server.types.cluster import Cluster, ClusterEvent, ClusterField, ClusterNote, ClusterState
from clag_server.types.memory import AnnotationSource, DecidedBy

__all__ = ["Application", "apply_to"]


@dataclass(frozen=True, slots=True)
class Application:
    """A plan as it can be applied now: the draft that does it, and the steps that hold (provisional numbers)."""

    draft: EditDraft
    steps: Sequence[PlanStep]
    numbers: Mapping[int, int]
    """Number in the draft of each new cluster of the plan."""

    @property
    def changes(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.steps)


def apply_to(
    cluster_map: ClusterMap,
    plan: Plan,
    profiles: Mapping[int, Cluster],
    *,
    cluster_max: int,
    now_ns: int,
    operation_id: str,
) -> Application:
    """Draft what holds of a plan; `profiles` are those of clusters that it makes, as they were planned.

    No step makes a cluster of more than `cluster_max` memories, whatever came since it was planned.
    """
    rehearsal = _Rehearsal(cluster_map, cluster_max)
    held = [now for now in (rehearsal.take(step) for step in plan.steps) if now is not None]
    draft = EditDraft(cluster_map, now_ns, cause=HistoryCause.REORGANIZATION, by=plan.by)
    numbers = {number: draft.found("") for number in rehearsal.founded()}
    held = [step for step in held if step.target > 0 or step.target in numbers]
    for episode, (target, reason) in sorted(rehearsal.moves().items()):
        draft.move_episode(episode, numbers.get(target, target), reason)
    gone = rehearsal.emptied()
    for number in gone:
        draft.remove(number)
    for step in held:
        if step.target not in gone:
            _write_profile(draft, step, numbers.get(step.target, step.target), profiles.get(step.target))
    for number in sorted({source for step in held for source in step.sources if source in profiles} - set(gone)):
        _put_profile(draft, number, profiles[number])  # what is left of it keeps its title, and is told anew
    for step in held:
        draft.notes.extend(_notes(step, numbers, operation_id))
    return Application(draft, held, numbers)


class _Rehearsal:
    """Where episodes would be, step by step, over the map as it is now."""

    def __init__(self, cluster_map: ClusterMap, cluster_max: int) -> None:
        self._map = cluster_map
        self._max = cluster_max
        self._homes: dict[int, tuple[int, str]] = {}
        self._members: dict[int, set[int]] = {}
        self._titles = {cluster.title for cluster in cluster_map.clusters.values()}

    def take(self, step: PlanStep) -> PlanStep | None:
        """Do a step; returns it as it holds now, None where nothing of it does."""
        if not self._takes(step.target):
            return None
        if step.kind is StepKind.RENAME:
            return self._rename(step)
        sources = tuple(number for number in step.sources if number != step.target and self._gives(number))
        wanted = (
            {e for number in sources for e in self.members(number)}
            if step.kind is StepKind.MERGE
            else {e for e in step.episodes if self._home(e) in sources and not self._map.episodes[e].open}
        )
        if not wanted or self._size(self.members(step.target) | wanted) > self._max:
            return None
        memories = 0
        for episode in sorted(wanted):
            self.members(self._home(episode)).discard(episode)
            self.members(step.target).add(episode)
            self._homes[episode] = (step.target, step.reason)
            memories += self._map.episodes[episode].memory_count
        return replace(step, sources=sources, episodes=tuple(sorted(wanted)), memories=memories)

    def _size(self, episodes: Collection[int]) -> int:
        return sum(self._map.episodes[episode].memory_count for episode in episodes)

    def members(self, number: int) -> set[int]:
        """Episodes that would be in a cluster."""
        if number not in self._members:
            self._members[number] = set(self._map.cluster_episodes.get(number, ()))
        return self._members[number]

    def founded(self) -> list[int]:
        """New clusters that hold something, in the order of the plan."""
        return sorted((n for n, members in self._members.items() if n < 0 and members), reverse=True)

    def emptied(self) -> list[int]:
        """Clusters that nothing is left in."""
        return sorted(n for n, members in self._members.items() if n > 0 and not members)

    def moves(self) -> dict[int, tuple[int, str]]:
        """Episode -> its new cluster, and why."""
        return {
            episode: home for episode, home in self._homes.items() if home[0] != self._map.episodes[episode].cluster
        }

    def _rename(self, step: PlanStep) -> PlanStep | None:
        cluster = self._map.clusters[step.target]
        if cluster.title != step.old_title or ClusterField.TITLE in cluster.client_fields:
            return None
        if step.new_title in self._titles:
            return None
        self._titles.add(step.new_title)
        return replace(step, memories=cluster.memory_count)

    def _home(self, episode: int) -> int:
        """Where an episode would be; 0 for one that is gone."""
        if episode not in self._map.episodes:
            return 0
        return self._homes[episode][0] if episode in self._homes else self._map.episodes[episode].cluster

    def _takes(self, number: int) -> bool:
        return number < 0 or self._touchable(number)

    def _gives(self, number: int) -> bool:
        return bool(self.members(number)) if number < 0 else self._touchable(number)

    def _touchable(self, number: int) -> bool:
        cluster = self._map.clusters.get(number)
        return cluster is not None and cluster.state is ClusterState.ACTIVE and not cluster.pinned


def _write_profile(draft: EditDraft, step: PlanStep, number: int, made: Cluster | None) -> None:
    """Write the profile that was planned; where other memories came or went it is marked to be written again."""
    now = draft.cluster(number)
    if step.kind is StepKind.REASSIGN or not step.new_title or ClusterField.TITLE in now.client_fields:
        return
    if made is None:
        by = AnnotationSource.SLM if step.title_by is DecidedBy.SLM else AnnotationSource.STATISTICS
        draft.put(replace(now, title=step.new_title, profiled_by=by))
        return
    _put_profile(draft, number, made)


def _put_profile(draft: EditDraft, number: int, made: Cluster) -> None:
    now = draft.cluster(number)
    draft.put(
        replace(
            now,
            title=now.title if ClusterField.TITLE in now.client_fields else made.title,
            summary=now.summary if ClusterField.SUMMARY in now.client_fields else made.summary,
            tags=now.tags if ClusterField.TAGS in now.client_fields else made.tags,
            representatives=made.representatives,
            profiled_by=made.profiled_by,
            profile_stale=now.memory_count != made.profile_count,
            profile_count=made.profile_count,
        )
    )


def _notes(step: PlanStep, numbers: Mapping[int, int], operation_id: str) -> list[ClusterNote]:
    """Return what the histories of the clusters say of a step."""
    target = numbers.get(step.target, step.target)
    sources = tuple(numbers.get(number, number) for number in step.sources)
    titles = {"old_title": step.old_title, "new_title": step.new_title}

    def note(cluster: int, event: ClusterEvent, others: tuple[int, ...], **more: str) -> ClusterNote:
        return ClusterNote(cluster, event, step.reason, others, step.memories, operation_id, **more)

    match step.kind:
        case StepKind.RENAME:
            return [note(target, ClusterEvent.PROFILE, (), **titles)]
        case StepKind.MERGE:
            gone = [note(number, ClusterEvent.MERGED, (target,)) for number in sources]
            return [*gone, note(target, ClusterEvent.MERGED, sources, **titles)]
        case StepKind.SPLIT | StepKind.NEW:
            event = ClusterEvent.SPLIT if step.kind is StepKind.SPLIT else ClusterEvent.MOVED
            left = [note(number, event, (target,)) for number in sources]
            return [*left, note(target, ClusterEvent.FOUNDED, sources, new_title=step.new_title)]
        case StepKind.REASSIGN:
            left = [note(number, ClusterEvent.MOVED, (target,)) for number in sources]
            return [*left, note(target, ClusterEvent.MOVED, sources)]
