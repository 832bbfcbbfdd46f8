"""The measures of grouping say what their definitions say, and the labels of the example are whole."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.grouping_data import LABELS, corpora, example
from bench.grouping_measures import adjusted_rand, togetherness, v_measure


def test_equal_partitions_agree_fully_whatever_the_clusters_are_called() -> None:
    assert adjusted_rand(["a", "a", "b", "c"], [7, 7, 1, 4]) == 1.0
    found = v_measure(["a", "a", "b", "c"], [7, 7, 1, 4])
    assert (found.homogeneity, found.completeness, found.v) == (1.0, 1.0, 1.0)


def test_a_label_that_is_split_costs_completeness_and_not_homogeneity() -> None:
    # By hand: 1 pair together, 2 of labels, 1 of clusters, of 6: (1 - 1/3) / (3/2 - 1/3).
    assert adjusted_rand([0, 0, 1, 1], [0, 0, 1, 2]) == pytest.approx(4 / 7)
    # By hand, in bits: H(clusters) = 3/2, H(clusters | labels) = 1/2.
    found = v_measure([0, 0, 1, 1], [0, 0, 1, 2])
    assert found.homogeneity == pytest.approx(1.0)
    assert found.completeness == pytest.approx(2 / 3)
    assert found.v == pytest.approx(0.8)


def test_one_cluster_for_all_agrees_no_more_than_chance() -> None:
    assert adjusted_rand([0, 0, 1, 1], [5, 5, 5, 5]) == 0.0
    found = v_measure([0, 0, 1, 1], [5, 5, 5, 5])
    assert (found.homogeneity, found.completeness, found.v) == (0.0, 1.0, 0.0)


def test_clusters_that_cut_across_the_labels_agree_less_than_chance() -> None:
    # By hand: no pair together, 2 of each, of 6: (0 - 2/3) / (2 - 2/3).
    assert adjusted_rand([0, 0, 1, 1], [0, 1, 0, 1]) == pytest.approx(-0.5)
    assert v_measure([0, 0, 1, 1], [0, 1, 0, 1]).v == pytest.approx(0.0)


def test_three_unequal_groups_are_counted_by_pairs() -> None:
    # By hand: the contingency is 2 1 / 1 2 / 0 1, the labels' sizes are 3, 3, 1, the clusters' 3, 4.
    labels, clusters = [0, 0, 0, 1, 1, 1, 2], [0, 0, 1, 0, 1, 1, 1]
    together, of_labels, of_clusters, total = 2, 3 + 3, 3 + 6, 21
    expected = of_labels * of_clusters / total
    assert adjusted_rand(labels, clusters) == pytest.approx(
        (together - expected) / ((of_labels + of_clusters) / 2 - expected)
    )
    h_labels = -(2 * 3 / 7 * math.log(3 / 7) + 1 / 7 * math.log(1 / 7))
    h_inside = -3 / 7 * (2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    h_inside -= 4 / 7 * (2 * 1 / 4 * math.log(1 / 4) + 2 / 4 * math.log(2 / 4))
    assert v_measure(labels, clusters).homogeneity == pytest.approx(1 - h_inside / h_labels)


partitions = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=24)


@given(partitions)
def test_agreement_is_symmetric_and_within_bounds(pairs: list[tuple[int, int]]) -> None:
    labels, clusters = [a for a, _ in pairs], [b for _, b in pairs]
    assert adjusted_rand(labels, clusters) == pytest.approx(adjusted_rand(clusters, labels))
    assert -1.0 <= adjusted_rand(labels, clusters) <= 1.0 + 1e-9
    there, back = v_measure(labels, clusters), v_measure(clusters, labels)
    assert there.v == pytest.approx(back.v)
    assert there.homogeneity == pytest.approx(back.completeness)
    assert 0.0 <= there.homogeneity <= 1.0 + 1e-9


@given(partitions)
def test_the_index_counts_what_a_loop_over_all_pairs_counts(rows: list[tuple[int, int]]) -> None:
    both = first = second = 0
    for (a, x), (b, y) in itertools.combinations(rows, 2):
        both, first, second = both + (a == b and x == y), first + (a == b), second + (x == y)
    expected = first * second / math.comb(len(rows), 2)
    most = (first + second) / 2
    wanted = 1.0 if most == expected else (both - expected) / (most - expected)
    assert adjusted_rand([a for a, _ in rows], [x for _, x in rows]) == pytest.approx(wanted)


def test_sequences_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        adjusted_rand([0, 1], [0])


def test_pairs_that_are_used_together_count_once_and_unknown_memories_not_at_all() -> None:
    clusters = {"a": 1, "b": 1, "c": 2, "d": 2}
    found = togetherness(clusters, [["a", "b"], ["b", "a", "x"], ["a", "c"]])
    assert (found.pairs, found.share) == (2, 0.5)
    assert found.by_chance == pytest.approx(2 / 6)


def test_one_large_cluster_holds_all_pairs_and_is_seen_to_do_so_by_chance() -> None:
    found = togetherness(dict.fromkeys("abcd", 1), [["a", "b"], ["c", "d"]])
    assert (found.share, found.by_chance) == (1.0, 1.0)


def test_every_memory_of_the_example_has_exactly_one_of_at_most_ten_topics() -> None:
    labels = json.loads(LABELS.read_text("utf-8"))
    given_ids = [one for ids in labels["memories"].values() for one in ids]
    assert sorted(given_ids) == sorted(item.memory_id for item in example().items)
    assert labels["memories"].keys() == labels["topics"].keys()
    assert 6 <= len(labels["topics"]) <= 10


def test_a_limit_keeps_the_questions_that_the_first_memories_answer_alone() -> None:
    whole, some = example(), example().first(100)
    kept = {item.memory_id for item in some.items}
    assert len(kept) == 100
    assert some.topics.keys() == kept
    assert 0 < len(some.questions) < len(whole.questions)
    assert all(kept.issuperset(one.evidence) for one in some.questions)


def test_data_that_is_not_there_is_named_with_the_reason(tmp_path: Path) -> None:
    found, absent = corpora(["example", "locomo:conv-26", "novel"], tmp_path)
    assert [one.name for one in found] == ["example"]
    assert len(absent) == 2
    assert "locomo10.json" in absent[0]
    assert "novel" in absent[1]
