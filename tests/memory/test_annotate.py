"""Keywords without a model are the memory's own words, and clusters are named by what tells them apart."""

from __future__ import annotations

import pytest

from clag_server.memory.annotate import Annotation, annotate_by_terms
from clag_server.memory.terms import characteristic, term_candidates, written
from clag_server.types.memory import AnnotationSource
from tests.memory.builders import memory

TEXT = "The gripper dropped a crate of oranges in aisle seven"


def deterministic() -> Annotation:
    return annotate_by_terms(
        memory(1, TEXT), None, {"gripper": 1, "crate": 5, "orang": 1, "aisl": 40, "drop": 9, "seven": 60}, 100
    )


def test_keywords_without_a_model_are_the_memorys_own_words() -> None:
    annotation = deterministic()
    assert annotation.source is AnnotationSource.STATISTICS
    assert 1 <= len(annotation.keywords) <= 5
    assert all(word in TEXT for word in annotation.keywords)
    assert annotation.keywords[0] in {"gripper", "oranges"}


def test_a_cluster_is_named_by_what_it_says_more_often_than_the_rest() -> None:
    counts = {"dance": 12, "studio": 7, "time": 20, "gloss": 1}
    frequency = {"dance": 13, "studio": 7, "time": 200, "gloss": 1}
    assert characteristic(counts, 60, frequency, 400, limit=2) == ["dance", "studio"]


def test_words_that_everyone_says_do_not_name_a_cluster() -> None:
    counts = {"battery": 5, "robot": 30}
    assert characteristic(counts, 30, {"battery": 6, "robot": 300}, 300, limit=1) == ["battery"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Der Drucker ist kaputt und eine Taste fehlt", ("Drucker", "kaputt", "Taste", "fehlt")),
        ("Les vélos sont dans le garage", ("vélos", "garage")),
        ("المصعد معطل إلى الغد", ("المصعد", "معطل", "الغد")),
        ("東京都庁の会議室でエスカレーターを直した", ("東京都庁", "会議室", "エスカレーター")),
        ("충전기 불이 켜졌다", ("충전기", "불이", "켜졌다")),
        ("My son met a man at the door of the van", ("son", "met", "man", "door", "van")),
    ],
)
def test_keywords_are_whole_words_of_weight_in_any_language(text: str, shown: tuple[str, ...]) -> None:
    assert written(list(term_candidates(text)), [text], limit=9) == shown


def test_a_run_of_han_characters_that_is_a_sentence_is_left_in_pairs() -> None:
    text = "机器人在仓库搬运箱子的时候停了下来"
    assert text not in written(list(term_candidates(text)), [text], limit=99)
