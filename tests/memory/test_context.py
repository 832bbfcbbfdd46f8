"""A context never exceeds its budget, names its sources, and reads in order of time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clag_server.memory.context import assemble
from clag_server.types.memory import Link, LinkKind
from clag_server.types.retrieval import ContextFormat, MemoryHit, ScoreParts
from tests.memory.builders import memory


class Words:
    """Counts words and brackets, so that joined texts may cost more than their parts."""

    def count(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) + text.count("\n") for text in texts]


def hit(rank: int, text: str, *, cluster: int = 1, key: int | None = None) -> MemoryHit:
    m = replace(memory(key if key is not None else rank, text, speaker="Ana"), cluster=cluster)
    return MemoryHit(m, f"topic {cluster}", 1.0 / rank, rank, ScoreParts(0, 0, 0, 0, "cluster"))


@given(
    st.lists(st.text(alphabet="ab \n", min_size=1, max_size=60), max_size=20),
    st.integers(1, 80),
    st.sampled_from(list(ContextFormat)),
)
def test_the_budget_is_never_exceeded_and_nothing_is_uncounted(
    texts: list[str], budget: int, form: ContextFormat
) -> None:
    hits = [hit(i, text, cluster=i % 3) for i, text in enumerate(texts, start=1)]
    context = assemble(hits, budget=budget, form=form, counter=Words())
    assert context.tokens <= budget
    assert context.tokens == (Words().count([context.text])[0] if context.text else 0)
    assert len(context.memory_ids) + context.left_out == len(hits)


def test_better_hits_are_preferred_when_not_all_fit() -> None:
    hits = [hit(1, "first " * 5), hit(2, "second " * 50), hit(3, "third " * 5)]
    context = assemble(hits, budget=40, form=ContextFormat.PLAIN, counter=Words())
    assert context.memory_ids == ("m1", "m3")
    assert context.left_out == 1


def test_clusters_come_by_best_rank_and_memories_by_time() -> None:
    hits = [hit(1, "x", cluster=2, key=9), hit(2, "y", cluster=1, key=3), hit(3, "z", cluster=2, key=1)]
    context = assemble(hits, budget=500, form=ContextFormat.PLAIN, counter=Words())
    assert context.memory_ids == ("m1", "m9", "m3")
    assert context.text.splitlines()[0].startswith('[Memory from "topic 2", ')


def test_a_duplicate_is_shown_once() -> None:
    first, second = hit(1, "same"), hit(2, "same")
    linked = replace(second.memory, links=(Link("m1", LinkKind.DUPLICATE, "says the same"),))
    context = assemble(
        [first, replace(second, memory=linked)], budget=99, form=ContextFormat.PLAIN, counter=Words()
    )
    assert context.memory_ids == ("m1",)
    assert context.left_out == 1


@pytest.mark.parametrize("form", [ContextFormat.JSON, ContextFormat.CHAT_MESSAGES])
def test_json_forms_parse_whatever_the_memories_say(form: ContextFormat) -> None:
    context = assemble([hit(1, 'quote " and \\ and \n')], budget=99, form=form, counter=Words())
    parsed = json.loads(context.text)
    assert len(parsed) == 1


def test_a_replaced_memory_says_so() -> None:
    old = hit(1, "dock is B3")
    replaced = replace(old, memory=replace(old.memory, superseded_by="m7"))
    context = assemble([replaced], budget=99, form=ContextFormat.PLAIN, counter=Words())
    assert "replaced by a newer memory" in context.text


def test_episodes_of_a_cluster_stay_together_though_their_times_interleave() -> None:
    keys = {1: 5, 2: 6, 3: 5, 4: 6}  # key -> episode; keys are in order of time
    hits = [hit(rank, f"note {key}", key=key) for rank, key in enumerate(keys, start=1)]
    hits = [replace(h, memory=replace(h.memory, episode=keys[h.memory.key])) for h in hits]
    context = assemble(hits, budget=99, form=ContextFormat.PLAIN, counter=Words())
    assert context.memory_ids == ("m1", "m3", "m2", "m4")


def test_a_heading_is_paid_for_once() -> None:
    hits = [hit(rank, "word", key=rank) for rank in range(1, 6)]
    whole = assemble(hits, budget=500, form=ContextFormat.MARKDOWN, counter=Words())
    assert whole.text.count("###") == 1
    assert assemble(hits, budget=whole.tokens + 1, form=ContextFormat.MARKDOWN, counter=Words()).left_out == 0


@pytest.mark.parametrize("form", [ContextFormat.JSON, ContextFormat.CHAT_MESSAGES])
def test_a_json_form_without_memories_is_an_empty_list(form: ContextFormat) -> None:
    context = assemble([], budget=9, form=form, counter=Words())
    assert (json.loads(context.text), context.memory_ids) == ([], ())


@pytest.mark.parametrize("form", list(ContextFormat))
def test_every_form_says_cluster_date_speaker_and_what_was_replaced(form: ContextFormat) -> None:
    first = hit(1, "the dock is B3")
    text = assemble(
        [replace(first, memory=replace(first.memory, superseded_by="m7"))], budget=99, form=form, counter=Words()
    ).text
    assert "topic 1" in text
    assert "February 2026" in text
    assert "Ana" in text
    assert ("replaced by a newer memory" in text) or ('"superseded_by": "m7"' in text)


@pytest.mark.parametrize("form", [ContextFormat.PLAIN, ContextFormat.MARKDOWN])
def test_no_memory_title_or_speaker_begins_a_line_of_its_own(form: ContextFormat) -> None:
    bad = hit(1, "one\n>>>\ntwo")
    bad = replace(bad, cluster_title="a\n>>>\nb", memory=replace(bad.memory, speaker="x\n>>>\ny"))
    text = assemble([bad], budget=99, form=form, counter=Words()).text
    assert not any(line.startswith(">>>") for line in text.splitlines())
