"""Language models that are known to be bad, and one that cannot be wrong, in place of the server's.

The embedder stays the real one, so that the vectors' side of every decision is what it is for users.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final
from unittest import mock

from clag_client import AsyncClient

from bench.grouping_data import Corpus
from clag_server import server
from clag_server.memory.prompts import routing_note
from clag_server.models import factory
from clag_server.models.api import ChoiceOption, ChoiceResult, Priority, Usage
from clag_server.models.config import ModelsConfig
from clag_server.models.factory import ModelHost
from clag_server.models.scripted import Script, ScriptedSlm

_CLUSTER_OF_A_KEY: Final = re.compile(r"/c(\d+)(?:/|$)")
_LEAST_CHARACTERS: Final = 24
"""Of a text that is looked for inside another: a shorter one is there by chance too."""


class Oracle(ScriptedSlm):
    """Knows which memories are used together, and looks where they are: an upper bound for routing and selection.

    Asked about an episode, a cluster's score is how many pairs it would unite: one memory of the episode, one in
    the cluster, both needed by one question, or (where there are topics given by hand) both of one topic. It knows
    nothing of memories that have not arrived. Asked about a question, a cluster's score is how many of the memories
    that answer it are in the cluster. Where no cluster has any, all score the same. It writes nothing.
    """

    def __init__(self) -> None:
        super().__init__(lambda: Script(generate="refuse"))
        self._corpus: Corpus | None = None
        self._client: AsyncClient | None = None
        self._partners: dict[str, frozenset[str]] = {}
        self._evidence: dict[str, tuple[str, ...]] = {}
        self._homes: Mapping[str, str] = {}

    def reveal(self, corpus: Corpus, client: AsyncClient) -> None:
        """Say what will be asked, and where to look for what is stored."""
        self._corpus, self._client, self._homes = corpus, client, {}
        self._evidence = {routing_note(one.text): one.evidence for one in corpus.questions}
        by_topic: dict[str, list[str]] = {}
        for key, topic in corpus.topics.items():
            by_topic.setdefault(topic, []).append(key)
        partners: dict[str, set[str]] = {}
        for group in [*(one.evidence for one in corpus.questions), *by_topic.values()]:
            for key in group:
                partners.setdefault(key, set()).update(group)
        self._partners = {key: frozenset(found - {key}) for key, found in partners.items()}

    def settled(self, cluster_of: Mapping[str, str]) -> None:
        """Say in which cluster each memory ended: what questions are answered by."""
        self._homes = cluster_of

    async def choose(
        self,
        text: str,
        options: Sequence[ChoiceOption],
        *,
        priority: Priority,  # noqa: ARG002 - it has no queue
        deadline_s: float | None = None,  # noqa: ARG002 - nor does it wait
    ) -> ChoiceResult:
        """Score options by what they would unite; see `SlmEngine.choose`."""
        if text in self._evidence:
            held = Counter(self._homes.get(one, "") for one in self._evidence[text])
            return ChoiceResult(tuple(held[_cluster_id(option)] - 1e3 for option in options), Usage(0))
        if self._corpus is None or self._client is None:
            return ChoiceResult((-1.0,) * len(options), Usage(0))
        shown = " ".join(text.split())
        moved = {item.memory_id for item in self._corpus.items if _is_shown(" ".join(item.text.split()), shown)}
        wanted = Counter(partner for key in sorted(moved) for partner in self._partners.get(key, ()))
        united: Counter[str] = Counter()
        async for memory in self._client.list_memories(self._corpus.name, page_size=1000):
            if memory.memory_id not in moved:
                united[memory.cluster_id] += wanted[memory.memory_id]
        scores = tuple(united[_cluster_id(option)] - 1e4 for option in options)
        return ChoiceResult(scores, Usage(len(shown.split())))


def double(name: str, *, seed: int = 0) -> ScriptedSlm | None:
    """Return a double by its name, None where the name is a real model's.

    `random` draws votes and annotations. `first` always votes for the first option, which is what episodes or
    vectors prefer, `last` for the last one, which they like least; both draw annotations. `oracle` must be told
    what it knows.
    """
    if name == "oracle":
        return Oracle()
    if name in ("random", "first", "last"):
        script = Script(choose=name, generate="random", seed=seed)
        return ScriptedSlm(lambda: script)
    return None


@contextlib.contextmanager
def in_place_of_the_slm(slm: ScriptedSlm | None) -> Iterator[None]:
    """Servers that are built inside have this language model, and their own embedder; None changes nothing."""
    if slm is None:
        yield
        return

    def built(config: ModelsConfig) -> ModelHost:
        with mock.patch.object(factory, "AbsentSlm", return_value=slm):
            host = factory.build_models(replace(config, slm=None, slm_url=""))
        host.slm_identity = slm.name
        return host

    with mock.patch.object(server, "build_models", built):
        yield


def _cluster_id(option: ChoiceOption) -> str:
    """Return the cluster that an option stands for, "" for one that stands for no cluster that is there.

    Raises ValueError for a key that says neither.
    """
    if option.key.endswith("/none"):
        return ""
    found = _CLUSTER_OF_A_KEY.search(option.key)
    if found is None:
        raise ValueError(f"the key {option.key!r} of an option names no cluster")
    return f"c{found[1]}"


def _is_shown(text: str, shown: str) -> bool:
    """Whether a memory is in what the model is shown, whole or clipped at the end."""
    if len(text) < _LEAST_CHARACTERS:
        return shown == text
    return text in shown or shown.endswith(tuple(text[:n] for n in range(_LEAST_CHARACTERS, len(text))))
