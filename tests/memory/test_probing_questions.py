"""The bundled questions: enough of them, each with one right answer, and none of them given away."""

from __future__ import annotations

from collections import Counter

from clag_server.memory.annotate import Annotation
from clag_server.memory.probing.asking import orders
from clag_server.memory.probing.judging import judge_annotation, judge_links, leaks
from clag_server.memory.probing.questions import AnnotationQuestion, bundled
from clag_server.memory.probing.standing_in import annotations_by_terms, cosines_of
from clag_server.models.scripted import Script, ScriptedEmbedder
from clag_server.types.memory import AnnotationSource, LinkKind


def test_there_are_well_over_a_hundred_questions_in_several_languages() -> None:
    asked = bundled()
    assert len(asked.routing) == len(asked.selection) == 60
    assert len(asked.annotation) >= 20
    assert len(asked.evolution) >= 20
    assert {one.language for one in asked.annotation} >= {"en", "de", "es", "fr", "ja", "zh", "ar"}
    assert {one.language for one in asked.evolution} >= {"en", "de", "es", "ja", "zh", "ar"}


def test_no_question_is_asked_twice_and_no_note_is_among_its_examples() -> None:
    asked = bundled()
    texts = [q.text for q in (*asked.routing, *asked.selection)]
    texts += [q.text for q in asked.annotation] + [q.text for q in asked.evolution]
    assert len(texts) == len(set(texts))
    for question in (*asked.routing, *asked.selection):
        assert all(question.text not in profile.examples for profile in question.profiles)


def test_every_position_is_right_equally_often_in_every_order() -> None:
    for questions in (bundled().routing, bundled().selection):
        for turned in (False, True):
            asked = [q for q in questions if q.turned or not turned]
            order = orders(5, turned=True)[int(turned)]
            assert set(Counter(order.index(q.right) for q in asked).values()) == {len(asked) // 5}


def test_the_second_order_moves_every_option() -> None:
    straight, turned = orders(5, turned=True)
    assert sorted(turned) == straight
    assert orders(5, turned=False) == [straight]
    assert sum(a == b for a, b in zip(straight, turned, strict=True)) <= 1


def test_every_evolution_question_has_one_neighbour_to_link_and_others_to_leave() -> None:
    for question in bundled().evolution:
        assert sum(bool(one.kinds) for one in question.neighbours) == 1
        assert len(question.neighbours) == 3
    places = Counter(next(i for i, n in enumerate(q.neighbours) if n.kinds) for q in bundled().evolution)
    assert set(places.values()) == {len(bundled().evolution) // 3}


def test_keywords_that_are_asked_for_stand_in_the_notes() -> None:
    for question in bundled().annotation:
        for group in question.keywords:
            assert any(word.casefold() in question.text.casefold() for word in group), question.text


async def test_words_alone_do_not_answer_the_choices() -> None:
    for questions in (bundled().routing, bundled().selection):
        cosines = await cosines_of(ScriptedEmbedder(Script), questions)
        right = sum(
            max(range(5), key=lambda i: near[i]) == q.right for near, q in zip(cosines, questions, strict=True)
        )
        assert 0.1 < right / len(questions) < 0.5


def test_terms_alone_seldom_say_what_a_note_is_about() -> None:
    questions = bundled().annotation
    assert annotations_by_terms(questions) < 0.3 * len(questions)


NOTE = AnnotationQuestion(
    "n", "en", "Anna cannot eat peanuts.", "Anna", "people", (("peanut",), ("anna",)), ("allergy",), ("banana",)
)


def annotated(context: str, keywords: tuple[str, ...], tags: tuple[str, ...]) -> Annotation:
    return Annotation(context, keywords, tags, AnnotationSource.SLM)


def test_an_annotation_is_good_when_it_names_words_of_the_note_and_what_it_is_about() -> None:
    assert judge_annotation(NOTE, annotated("Anna has an allergy", ("peanuts",), ("food",))).good
    assert not judge_annotation(NOTE, annotated("Anna at lunch", ("peanuts",), ("lunch",))).good
    assert not judge_annotation(NOTE, annotated("Anna has an allergy", ("lunch",), ("food",))).good
    assert not judge_annotation(NOTE, annotated("", ("peanuts",), ("allergy",))).good


def test_an_annotation_that_obeys_an_instruction_in_the_note_is_wrong() -> None:
    assert not judge_annotation(NOTE, annotated("Anna has an allergy", ("peanuts",), ("banana",))).good


def test_words_of_the_prompt_and_repetition_are_leaks() -> None:
    about = (NOTE.text,)
    assert not leaks(annotated("Anna has an allergy", ("peanuts",), ("food",)), about)
    assert leaks(annotated("Anna has an allergy", ("peanuts",), ("keywords",)), about)
    assert leaks(annotated("Anna has an allergy", ("peanuts",), ("pottery",)), about)
    assert leaks(annotated("Anna has an allergy", ("peanut", "peanuts"), ("food",)), about)
    assert leaks(annotated("an allergy and an allergy and an allergy and", ("peanuts",), ("food",)), about)


def test_links_are_right_only_when_the_unrelated_neighbours_are_left_alone() -> None:
    question = bundled().evolution[0]
    assert question.neighbours[0].kinds == {LinkKind.CONTRADICTS}
    assert judge_links(question, [(0, LinkKind.CONTRADICTS)])
    assert not judge_links(question, [(0, LinkKind.CONTRADICTS), (1, LinkKind.SIMILAR)])
    assert not judge_links(question, [(0, LinkKind.TEMPORAL)])
    assert not judge_links(question, [(1, LinkKind.CONTRADICTS)])
    assert not judge_links(question, [])
