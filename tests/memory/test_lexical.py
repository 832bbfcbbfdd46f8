"""Index tokens: any script, no query syntax, stable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clag_server.memory.lexical import MAX_TOKENS, surface_forms, tokens


@pytest.mark.parametrize(
    ("memory", "query"),
    [
        ("猫は屋根にいる", "猫"),
        ("机器人在仓库", "仓库"),
        ("로봇이 창고에 있다", "창고"),
        ("Charging at the dock", "charged docks"),
        ("Der Schlüssel liegt im Büro", "schlüssel"),
        ("ＡＢＣ wide letters", "abc"),
    ],
)
def test_a_query_shares_tokens_with_the_memory_that_says_it(memory: str, query: str) -> None:
    assert set(tokens(query)) <= set(tokens(memory))


@pytest.mark.parametrize("text", ["```", "the of", "()", "*", "🦾🤖", "", " \n\t", '"', "||"])
def test_text_without_content_words_has_no_tokens(text: str) -> None:
    assert tokens(text) == []


@given(st.text(max_size=400))
def test_tokens_hold_no_white_space_or_query_syntax(text: str) -> None:
    for token in tokens(text):
        assert token
        assert not set(token) & set(" \t\n\"'*():^-+{}")


@given(st.text(max_size=200))
def test_every_token_has_a_surface_form(text: str) -> None:
    assert set(tokens(text)) <= set(surface_forms(text))


def test_a_huge_text_is_cut_at_the_limit() -> None:
    assert len(tokens("猫" * 30_000)) == MAX_TOKENS
