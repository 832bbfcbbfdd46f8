"""What the benchmarks of organizing read out of a run is what the run did."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from clag.v1 import admin_service_pb2 as admin_pb
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient

from bench.grouping_data import Asked, Corpus
from bench.grouping_report import Report, table
from bench.grouping_run import Organized, Work, routed_by, unusable, votes_that_agree
from bench.organize_history import Locality, Past, evolved, locality
from bench.organize_released import NEIGHBOURS, calls_of
from bench.spoil_models import Oracle, double
from bench.texts import repeated
from clag_server.models.api import ChoiceOption, Priority


def entry(
    at_s: int,
    *,
    by: str = "",
    cluster: str = "",
    moved_from: str | None = None,
    field: str = "links",
    model: str = "",
) -> pb.MemoryHistoryEntry:
    """An evolution by another memory (`by`) or by itself; or a move from another cluster."""
    moved = moved_from is not None
    change = pb.FieldChange(field="cluster_id" if moved else field, old_value=json.dumps(moved_from or ""))
    told = pb.MemoryHistoryEntry(
        cause=pb.HISTORY_CAUSE_ROUTING if moved else pb.HISTORY_CAUSE_EVOLUTION,
        cause_memory_id=by,
        cluster_id=cluster,
        model=model,
        changes=[change],
    )
    told.time.FromSeconds(at_s)
    return told


def test_evolution_inside_a_cluster_is_local_also_when_both_memories_moved_on_since() -> None:
    found = {
        "new": Past("c9", (entry(30, moved_from="c1"), entry(20))),
        "old": Past("c7", (entry(40, moved_from="c1"), entry(20, by="new", cluster="c1"))),
    }
    assert locality(found) == Locality(1, 0)


def test_evolution_of_a_memory_that_was_elsewhere_then_is_noticed_though_both_are_together_now() -> None:
    found = {
        "new": Past("c1", (entry(20),)),
        "old": Past("c1", (entry(30, moved_from="c2"), entry(20, by="new", cluster="c2"))),
    }
    assert locality(found) == Locality(1, 1)


def test_an_entry_that_names_another_cluster_than_the_memorys_is_noticed() -> None:
    found = {"new": Past("c1", ()), "old": Past("c1", (entry(20, by="new", cluster="c3"),))}
    assert locality(found) == Locality(1, 1)


def test_what_a_memory_did_to_itself_and_what_a_deleted_one_did_is_not_counted() -> None:
    assert locality({"a": Past("c1", (entry(9, cluster="c1"), entry(8, by="gone", cluster="c2")))}) == Locality(
        0, 0
    )


def test_the_models_part_in_evolution_is_counted_by_what_it_wrote() -> None:
    link = types_pb2.MemoryLink(memory_id="old", kind=types_pb2.LINK_KIND_CAUSAL)
    near = types_pb2.MemoryLink(memory_id="old", kind=types_pb2.LINK_KIND_SIMILAR)
    memories = [types_pb2.Memory(memory_id="new", links=[link, near]), types_pb2.Memory(memory_id="old")]
    found = {
        "new": Past("c1", (entry(20, model="m"),)),
        "old": Past("c1", (entry(20, by="new", cluster="c1", field="context"), entry(9, field="context"))),
    }
    done = evolved(memories, found)
    assert (done.by_model, done.rewritten, done.links, done.judged) == (1, 1, 2, 1)


def routing(*scores: tuple[float, float | None]) -> types_pb2.RoutingDecision:
    candidates = [
        types_pb2.RoutingCandidate(cluster_id=f"c{i}", cosine=cosine, channel_score=channel)
        for i, (cosine, channel) in enumerate(scores)
    ]
    return types_pb2.RoutingDecision(decided_by=types_pb2.ROUTING_DECIDER_SLM, candidates=candidates)


def test_votes_are_decisions_with_scores_and_agree_where_the_nearest_cluster_scores_best() -> None:
    decisions = [
        routing((0.9, -10.0), (0.5, -20.0)),
        routing((0.9, -20.0), (0.5, -10.0)),
        routing((0.9, None), (0.5, None)),
        routing((0.9, -5.0)),
    ]
    assert votes_that_agree(decisions) == (2, 1)


def test_an_episode_is_one_decision_however_many_memories_it_has() -> None:
    memories = tuple(
        types_pb2.Memory(memory_id=f"m{i}", episode_id=episode, cluster_id="c1", routing=routing((0.5, -1.0)))
        for i, episode in enumerate(["e1", "e1", "e2", ""])
    )
    organized = Organized(memories, (), admin_pb.GetStatsResponse(), Work(0, 0, 0), 1.0)
    assert len(organized.decisions()) == 3
    assert routed_by(memories)["slm"] == pytest.approx(1.0)


def test_unusable_answers_are_those_without_a_form_or_with_something_that_was_not_offered() -> None:
    causes = {
        types_pb2.FALLBACK_CAUSE_INVALID_OUTPUT: 3,
        types_pb2.FALLBACK_CAUSE_NOT_A_CANDIDATE: 2,
        types_pb2.FALLBACK_CAUSE_UNAVAILABLE: 7,
    }
    fallbacks = [admin_pb.FallbackCount(cause=cause, count=count) for cause, count in causes.items()]
    assert unusable(admin_pb.GetStatsResponse(outcomes=admin_pb.OutcomeCounters(fallbacks=fallbacks))) == 5


def test_the_released_pattern_asks_three_times_and_shows_the_note_and_its_neighbours() -> None:
    texts = [text for text, _, _ in repeated(12)]
    describing, choosing, evolving = calls_of(texts, 8)
    assert all(texts[8] in prompt for prompt in (describing, choosing, evolving))
    assert [text in evolving for text in texts[:8]] == [False] * (8 - NEIGHBOURS) + [True] * NEIGHBOURS


async def test_a_report_keeps_what_was_measured_and_measures_only_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    measured = []

    async def measure() -> dict[str, float]:
        measured.append(1)
        return {"share": 0.25}

    assert (await Report(path).run("one", measure))["share"] == 0.25
    assert (await Report(path).run("one", measure))["share"] == 0.25
    assert len(measured) == 1
    await Report(path).run("two", measure)
    assert json.loads(path.read_text())["runs"].keys() == {"one", "two"}


def test_a_table_has_a_column_for_what_any_row_knows() -> None:
    lines = table({"a": {"x": 0.5}, "b": {"y": 3}}, {"x": "half", "y": "count", "z": "never"}).splitlines()
    assert [line.split() for line in lines] == [["half", "count"], ["a", "0.500"], ["b", "3"]]


async def test_an_oracle_that_was_told_nothing_prefers_nothing() -> None:
    oracle = double("oracle")
    assert isinstance(oracle, Oracle)
    options = [ChoiceOption("1/c1", "one"), ChoiceOption("1/c2", "two")]
    scores = (await oracle.choose("where is the dock", options, priority=Priority.ORGANIZE)).scores
    assert scores[0] == scores[1]


class Stored:
    """A client of a server that has some memories."""

    def __init__(self, clusters: dict[str, str]) -> None:
        self._clusters = clusters

    async def list_memories(self, namespace: str, *, page_size: int) -> AsyncIterator[types_pb2.Memory]:
        for memory_id, cluster in self._clusters.items():
            yield types_pb2.Memory(memory_id=memory_id, cluster_id=cluster)


async def test_an_oracle_prefers_the_cluster_with_most_of_what_is_used_with_the_episode() -> None:
    corpus = Corpus(
        "talk",
        tuple(
            types_pb2.MemoryInput(memory_id=f"m{i}", text=f"sentence number {i} about the thing") for i in range(5)
        ),
        {},
        (Asked("when?", ("m0", "m1")), Asked("where?", ("m0", "m2")), Asked("why?", ("m3", "m4"))),
    )
    stored = Stored({"m0": "c1", "m1": "c2", "m2": "c2", "m3": "c3", "m4": "c3"})
    oracle = Oracle()
    oracle.reveal(corpus, cast("AsyncClient", stored))
    options = [ChoiceOption(f"1/c{i}{how}", f"topic {i}") for i, how in ((1, ""), (2, "/without"), (3, ""))]
    shown = "sentence number 0 about the thing sentence number 3 about the thi"
    scores = (await oracle.choose(shown, options, priority=Priority.ORGANIZE)).scores
    # Of episode m0, m3: two pairs with c2 (m1, m2), one with c3 (m4), none with c1.
    assert [score - scores[0] for score in scores] == [0, 2, 1]


def test_only_doubles_have_the_names_of_doubles() -> None:
    assert double("random") is not None
    assert double("first") is not None
    assert double("smollm2-135m-instruct") is None
