"""The benchmark of bad models: what the oracle knows of questions, and how goals are judged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import pytest
from clag.v1 import types_pb2
from clag_client import AsyncClient

from bench.grouping_data import Asked, Corpus
from bench.spoil import verdict
from bench.spoil_models import Oracle
from clag_server.memory.prompts import routing_note
from clag_server.models.api import ChoiceOption, Priority


class Stored:
    """A client of a server that has some memories."""

    def __init__(self, clusters: dict[str, str]) -> None:
        self._clusters = clusters

    async def list_memories(self, namespace: str, *, page_size: int) -> AsyncIterator[types_pb2.Memory]:
        for memory_id, cluster in self._clusters.items():
            yield types_pb2.Memory(memory_id=memory_id, cluster_id=cluster)


CORPUS = Corpus(
    "talk",
    tuple(types_pb2.MemoryInput(memory_id=f"m{i}", text=f"sentence number {i} of the talk") for i in range(4)),
    {},
    (Asked("Where did they\n meet?", ("m0", "m1", "m3")), Asked("When?", ("m2",))),
)
OPTIONS = [ChoiceOption(f"1/c{i}", f"topic {i}") for i in (1, 2, 3)]


async def votes(oracle: Oracle, question: str) -> list[float]:
    scores = (await oracle.choose(routing_note(question), OPTIONS, priority=Priority.INTERACTIVE)).scores
    return [score - min(scores) for score in scores]


async def test_an_oracle_chooses_the_cluster_that_holds_most_of_what_answers_a_question() -> None:
    oracle = Oracle()
    oracle.reveal(CORPUS, cast("AsyncClient", None))
    oracle.settled({"m0": "c1", "m1": "c3", "m2": "c2", "m3": "c3"})
    assert await votes(oracle, CORPUS.questions[0].text) == [1, 0, 2]
    assert await votes(oracle, CORPUS.questions[1].text) == [0, 1, 0]


async def test_an_oracle_prefers_nothing_where_no_cluster_that_is_shown_holds_the_answer() -> None:
    oracle = Oracle()
    oracle.reveal(CORPUS, cast("AsyncClient", None))
    oracle.settled({"m0": "c1", "m1": "c3", "m2": "c9", "m3": "c3"})
    assert await votes(oracle, CORPUS.questions[1].text) == [0, 0, 0]


@pytest.mark.parametrize(
    ("model", "trust", "lost", "met"),
    [
        ("random", "probe", 1.0, True),
        ("random", "probe", 1.1, False),
        ("random", "full", 5.0, True),
        ("random", "full", 5.1, False),
        ("oracle", "full", -2.0, True),
        ("oracle", "full", -1.9, False),
    ],
)
def test_goals_are_judged_by_what_a_model_costs_or_gains(model: str, trust: str, lost: float, met: bool) -> None:
    told = verdict(model, trust, lost, {"routing_weight": 0.0, "selection_weight": 0.0})
    assert ("missed" not in told) is met


@pytest.mark.parametrize(("weight", "met"), [(0.0, True), (0.25, False)])
def test_a_model_that_always_prefers_one_place_must_fail_the_probe(weight: float, met: bool) -> None:
    told = verdict("first", "probe", 0.0, {"routing_weight": 0.0, "selection_weight": weight})
    assert told.endswith("(goal 0: met)" if met else "(goal 0: missed)")


async def test_an_oracle_takes_a_cluster_of_its_own_for_one_that_holds_nothing() -> None:
    oracle = Oracle()
    oracle.reveal(CORPUS, cast("AsyncClient", Stored({"m0": "c1", "m1": "c2"})))
    options = [ChoiceOption("1/none", "notes of other things"), ChoiceOption("1/c2", "topic 2")]
    shown = "sentence number 0 of the talk"
    scores = (await oracle.choose(shown, options, priority=Priority.ORGANIZE)).scores
    assert scores[1] - scores[0] == 1
