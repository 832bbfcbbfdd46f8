"""Keywords without a model are the memory's own words, and clusters are named by what tells them apart."""

from __future__ import annotations

from clag_server.memory.annotate import Annotation, annotate_by_terms
from clag_server.memory.terms import characteristic
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
