"""What the SLM is shown when it weighs clusters for an episode: the episode's text, and each cluster without it.

A cluster's profile may have been written from the very episode that is asked about; shown so, it would win against
all others by repeating it. So the episode's own memories are kept out of the examples, and a cluster that mostly
consists of them is shown by examples alone. Kind, task and the agent's purpose are shown too: memories that serve
one use belong together, also without a word in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from clag_server.memory import prompts
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.routing_candidates import Choice
from clag_server.memory.voting import TEXT_CHARACTERS, Question, option
from clag_server.models.api import ChoiceOption
from clag_server.types.cluster import Cluster, Episode
from clag_server.types.memory import Memory, MemoryKind

_EXAMPLES = 2
_RECENT_EPISODES = 3
"""Episodes of a cluster that are looked into for examples where its representatives do not suffice."""


class Questions:
    """Makes questions from one look at a namespace; used for one wave of them, so no text outlives it."""

    def __init__(self, state: NamespaceState) -> None:
        self._state = state
        self._options: dict[int, ChoiceOption] = {}

    async def ask(self, episode: Episode, members: Sequence[Memory], choice: Choice) -> Question:
        """Read what the SLM is to be shown.

        Args:
            episode: The episode, closed.
            members: Its memories, in order.
            choice: The clusters to be weighed; those that are gone meanwhile have no option.
        """
        own = frozenset(memory.key for memory in members)
        options = {}
        for candidate in choice.candidates:
            cluster = self._state.map.clusters.get(candidate.cluster)
            if candidate.cluster == choice.own and choice.alone:
                options[candidate.cluster] = await self._elsewhere(choice)
            elif cluster is None:
                continue
            elif candidate.cluster == choice.own:
                options[candidate.cluster] = await self._without(cluster, episode, own)
            else:
                options[candidate.cluster] = await self.whole(cluster)
        return Question(routing_text(members), choice, options)

    async def whole(self, cluster: Cluster) -> ChoiceOption:
        """Return a cluster as it is, for an episode or a question that has no part in it."""
        if cluster.cluster not in self._options:
            self._options[cluster.cluster] = option(
                self._state.ns, cluster, await self._examples(cluster, 0, frozenset()), purpose=self._purpose
            )
        return self._options[cluster.cluster]

    async def _without(self, cluster: Cluster, episode: Episode, own: AbstractSet[int]) -> ChoiceOption:
        """Return a cluster as it is without the episode that is asked about."""
        examples = await self._examples(cluster, episode.episode, own)
        if 2 * episode.memory_count > cluster.memory_count:
            cluster = replace(cluster, title="", summary="", tags=())
        elif not own.isdisjoint(cluster.representatives):
            cluster = replace(cluster, summary="")
        shown = option(self._state.ns, cluster, examples, purpose=self._purpose)
        # A key of its own: the head that others are asked with stays in the engine's cache.
        return replace(shown, key=f"{shown.key}/without")

    async def _elsewhere(self, choice: Choice) -> ChoiceOption:
        """Return what stands for "none of these": notes of this agent that are about other things.

        Without them any cluster would be likelier than a bare head, for its examples show how this agent writes.
        """
        weighed = {candidate.cluster for candidate in choice.candidates}
        others = [cluster for number, cluster in self._state.map.clusters.items() if number not in weighed]
        others.sort(key=lambda cluster: (-cluster.memory_count, cluster.cluster))
        keys = [cluster.representatives[0] for cluster in others if cluster.representatives][:_EXAMPLES]
        head = prompts.cluster_head("", "", (), await self._notes(keys), purpose=self._purpose)
        return ChoiceOption(key=f"{self._state.ns}/none", head=head)

    async def _examples(self, cluster: Cluster, without: int, own: AbstractSet[int]) -> list[str]:
        """Return notes that speak for a cluster: its representatives, else recent members; none of `own`."""
        keys = [key for key in cluster.representatives if key not in own][:_EXAMPLES]
        if len(keys) < _EXAMPLES:
            others = self._state.map.cluster_episodes.get(cluster.cluster, set()) - {without}
            recent = sorted(others, reverse=True)[:_RECENT_EPISODES]
            members = await self._state.catalog.episode_members(self._state.ns, recent)
            keys += [key for key in members.keys.tolist() if key not in keys][: _EXAMPLES - len(keys)]
        return await self._notes(keys)

    async def _notes(self, keys: Sequence[int]) -> list[str]:
        found = await self._state.catalog.memories(self._state.ns, keys)
        return [prompts.routing_note(m.text, kind=kind_word(m.kind), task=m.task) for m in found]

    @property
    def _purpose(self) -> str:
        return self._state.namespace.settings.purpose


def routing_text(memories: Sequence[Memory]) -> str:
    """Return the beginning of an episode on one line; what its notes are is said where it changes."""
    parts: list[str] = []
    said = ("", "")
    for memory in memories:
        about = (kind_word(memory.kind), memory.task)
        kind, task = about if about != said else ("", "")
        parts.append(prompts.routing_note(memory.text, kind=kind, task=task))
        said = about
        if sum(map(len, parts)) >= TEXT_CHARACTERS:
            break
    return prompts.one_line(" ".join(parts), TEXT_CHARACTERS)


def kind_word(kind: MemoryKind) -> str:
    """Return what a kind is called; "" for none."""
    return "" if kind is MemoryKind.UNSPECIFIED else kind.name.lower().replace("_", " ")
