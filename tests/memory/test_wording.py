"""What a model copied from the prompt or from other memories is told apart from its own words, word by word."""

from __future__ import annotations

import pytest

from clag_server.memory.lexical import tokens
from clag_server.memory.wording import borrows, leaked


def known(*texts: str) -> frozenset[str]:
    return frozenset(token for text in texts for token in tokens(text))


@pytest.mark.parametrize(
    "text", ["pottery", "a shelf for Pottery", "potteries", "Orchester", "園芸", "盆栽の手入れ", "園芸店"]
)
def test_a_word_of_the_prompts_examples_leaks_in_any_of_its_forms(text: str) -> None:
    assert leaked(text, known("the dock is in bay three"))


@pytest.mark.parametrize(
    "text",
    ["Anna is a potter", "a potter's wheel", "Orchesterprobe", "potted plants", "選手入場", "the dock", ""],
)
def test_a_word_that_only_holds_or_resembles_one_of_the_examples_is_no_leak(text: str) -> None:
    assert not leaked(text, known("the dock is in bay three"))


def test_a_memory_may_be_described_with_its_own_words_and_no_further() -> None:
    assert not leaked("pottery", known("bought fine pottery"))
    assert not leaked("potteries", known("bought fine pottery"))
    assert leaked("pottery", known("Anna is a potter"))  # another word, and it stands in the examples
    assert not leaked("potter", known("Anna is a potter"))


def test_words_of_another_memory_are_borrowed_whole_and_in_any_form_but_not_as_parts() -> None:
    own, shown = known("Anna is a potter"), known("Anna is a potter", "the pottery class hums")
    assert borrows("pottery", own, shown)
    assert borrows("potteries", own, shown)
    assert not borrows("potter", own, shown)
    assert not borrows("potters", own, shown)
    assert borrows("humming", own, shown)


def test_a_word_of_ones_own_inside_a_longer_one_of_another_memory_is_ones_own() -> None:
    own, shown = known("the pot is hot"), known("the pot is hot", "pottery burns")
    assert not borrows("pot", own, shown)
    assert borrows("pottery", own, shown)
