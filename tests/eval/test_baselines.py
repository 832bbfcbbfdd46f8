from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from clag_eval.data import DataError, Memory
from clag_eval.methods import METHODS, Budgets, layout_of, made
from clag_eval.methods.local import Lexicon, min_max
from clag_eval.methods.released import grouped

_TEXTS = ("The boat lies at the north pier", "Rye bread on Fridays", "Boats and more boats: three boats at sea")


def _lexicon() -> Lexicon:
    pytest.importorskip("bm25s", reason="the extra `eval` is not installed")
    return Lexicon([Memory(str(row), text) for row, text in enumerate(_TEXTS)])


def test_words_are_found_by_their_stems() -> None:
    assert int(_lexicon().scores("Where is the bread?").argmax()) == 1


def test_a_question_of_function_words_and_unknown_words_matches_nothing() -> None:
    assert not _lexicon().scores("what is the xylophone of").any()


def test_bm25_has_the_value_of_its_formula() -> None:
    lexicon = _lexicon()
    lengths = [len(lexicon._tokens(text)) for text in _TEXTS]
    # "bread" is in one of three memories, once.
    saturation = 1 / (1 + 0.9 * (1 - 0.4 + 0.4 * lengths[1] / np.mean(lengths)))
    expected = [0.0, np.log(1 + 2.5 / 1.5) * saturation, 0.0]
    assert lexicon.scores("bread").tolist() == pytest.approx(expected, abs=1e-6)


def test_scaling_goes_from_zero_to_one_and_equal_values_count_nothing() -> None:
    assert min_max(np.array([2.0, 4.0, 3.0])).tolist() == [0.0, 1.0, 0.5]
    assert min_max(np.array([2.0, 2.0])).tolist() == [0.0, 0.0]


def _near(direction: NDArray[np.float32], count: int, seed: int) -> NDArray[np.float32]:
    noise = np.random.default_rng(seed).normal(size=(count, len(direction))).astype(np.float32)
    rows = direction + 0.02 * noise
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def test_the_released_rules_part_the_first_hundred_in_three_and_found_a_cluster_for_what_is_far() -> None:
    axes = np.eye(8, dtype=np.float32)
    first = np.concatenate([_near(axes[part], 34, part) for part in range(3)])[:100]
    cluster_of, founders = grouped(np.concatenate([first, _near(axes[5], 4, 9)]))
    assert len(founders) == 4
    assert len(set(cluster_of[:34].tolist())) == 1
    assert set(cluster_of[100:].tolist()) == {3}
    assert founders[3].tolist() == [100]


def test_the_released_rules_part_a_cluster_above_three_hundred() -> None:
    axes = np.eye(8, dtype=np.float32)
    vectors = np.concatenate([_near(axes[row % 2] * 2 + axes[2], 1, row) for row in range(420)])
    cluster_of, founders = grouped(vectors)
    assert max(np.bincount(cluster_of)) <= 300
    assert len(founders) == len(set(cluster_of.tolist()))


def test_fewer_memories_than_clusters_are_grouped_too() -> None:
    cluster_of, founders = grouped(np.eye(2, 8, dtype=np.float32))
    assert len(founders) == 2
    assert sorted(cluster_of.tolist()) == [0, 1]


def test_every_method_has_its_name_and_its_grouping() -> None:
    methods = made(tuple(METHODS), Budgets())
    assert [method.name for method in methods] == list(METHODS)
    assert {name: layout_of(name) for name in ("clag", "cosine", "kmeans", "amem", "rag")} == {
        "clag": "agentic",
        "cosine": "cosine",
        "kmeans": "kmeans",
        "amem": "global",
        "rag": "agentic",
    }


@pytest.mark.parametrize("name", ["nothing", "no.such.module:make", "tests.eval.samples:none"])
def test_a_method_that_is_not_there_is_refused_by_name(name: str) -> None:
    with pytest.raises(DataError, match=name):
        made((name,), Budgets())
