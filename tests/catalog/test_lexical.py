"""Lexical search: tokens are found as they were made, and a query is never query syntax."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from clag_server.catalog import frequencies, lexical
from clag_server.catalog.api import Catalog
from clag_server.catalog.common_tokens import CommonTokens
from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.types.cluster import PlacementPlan
from tests.catalog import support

NOW = support.NOW


async def indexed(catalog: Catalog, ns: int, documents: list[str]) -> list[int]:
    """Place one memory for each text of tokens and return the keys."""
    keys = await support.store_keys(catalog, ns, len(documents))
    plan = PlacementPlan(
        clusters=[support.cluster(1, count=len(keys))],
        episodes=[support.episode(1, 1, [support.unit(key) for key in keys], is_open=True)],
        placements=[support.placement(key, 1, 1, lexical=text) for key, text in zip(keys, documents, strict=True)],
    )
    await catalog.apply_plan(ns, plan, now_ns=NOW)
    return keys


@pytest.mark.parametrize(
    ("document", "token"),
    [
        ("猫 は 屋 根 猫は 屋根", "猫"),
        ("机器 器人 人在 在仓 仓库", "仓库"),
        ("한국 국어", "국어"),
        ("café au lait", "café"),
        ("gripper_2 stuck", "gripper_2"),
        ("battery 100,000 12.5%", "12.5%"),
        ("robot 🤖 says 👨‍👩‍👧", "👨‍👩‍👧"),
        ("flag 🇫🇷", "🇫🇷"),
        ("quote \"x' done", "\"x'"),
        ("near( title: a|b/c * or and not", "near("),
        ("near( title: a|b/c * or and not", "title:"),
        ("near( title: a|b/c * or and not", "*"),
        ("near( title: a|b/c * or and not", "or"),
    ],
)
async def test_a_token_is_found_whatever_its_script(catalog: Catalog, ns: int, document: str, token: str) -> None:
    keys = await indexed(catalog, ns, ["something else", document])
    assert (await catalog.lexical(ns, [token], limit=5)).keys.tolist() == [keys[1]]
    assert await catalog.document_frequency(ns, [token, "absent"]) == ({token: 1}, 2)


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        (["```"], 0), (["()"], 0), ([], 0), (["", " "], 0), (['"unbalanced'], 0), (["NEAR("], 0), (["tokens:"], 0),
        (["cafe"], 0), (["😀"], 0), (["word", "*"], 1), ([f"t{i}" for i in range(5_000)] + ["word"], 0),
    ],
)  # fmt: skip
async def test_a_query_is_never_query_syntax(catalog: Catalog, ns: int, tokens: list[str], found: int) -> None:
    await indexed(catalog, ns, ["word café"])
    assert len((await catalog.lexical(ns, tokens, limit=5)).keys) == found


async def test_better_matches_come_first_and_ties_by_key(catalog: Catalog, ns: int) -> None:
    keys = await indexed(catalog, ns, ["a x x x", "a b x x", "a x x x", "y y y y", "b x x x"])
    hits = await catalog.lexical(ns, ["b", "a"], limit=10)
    assert hits.keys.tolist()[0] == keys[1]
    assert [key for key in hits.keys.tolist() if key in {keys[0], keys[2]}] == [keys[0], keys[2]]
    assert sorted(hits.scores.tolist(), reverse=True) == hits.scores.tolist()
    assert hits.episodes.tolist() == [1] * 4
    assert hits.scores[0] > 0
    assert (await catalog.lexical(ns, ["b", "a"], limit=2)).keys.tolist() == hits.keys.tolist()[:2]


async def test_a_search_that_would_read_too_much_goes_by_the_rarest_words(catalog: SqliteCatalog, ns: int) -> None:
    keys = await indexed(catalog, ns, ["common"] * 30 + ["rare common", "often common"] + ["often"] * 4)

    async def found(tokens: list[str], postings: int) -> list[int]:
        hits = await catalog._read(lambda c: lexical.search(c, ns, tokens, limit=99, postings=postings))
        return sorted(hits.keys.tolist())

    assert await found(["common", "rare", "often"], 1_000) == keys
    assert await found(["common", "rare", "often"], 6) == keys[30:]
    assert await found(["common", "rare", "often"], 5) == [keys[30]]
    assert await found(["common", "rare", "unheard"], 5) == [keys[30]]
    newest_with_common = keys[:32][-5:]
    assert await found(["common"], 5) == newest_with_common


async def test_a_common_word_is_counted_once_in_a_while_and_a_rare_one_each_time(
    catalog: SqliteCatalog, ns: int
) -> None:
    now = 0.0
    common = CommonTokens(clock=lambda: now)

    async def found(tokens: list[str]) -> list[int]:
        hits = await catalog._read(lambda c: lexical.search(c, ns, tokens, limit=99, postings=3, common=common))
        return sorted(hits.keys.tolist())

    keys = await indexed(catalog, ns, ["many"] * 4 + ["few"])
    assert await found(["many", "few"]) == [keys[4]]
    await catalog._write(lambda tx: lexical.remove(tx, ns, keys[1:4]))
    assert await found(["many", "few"]) == [keys[4]]
    now = 601.0
    assert await found(["many", "few"]) == [keys[0], keys[4]]
    await catalog._write(lambda tx: lexical.add(tx, ns, [(key, "few") for key in keys[1:4]]))
    assert await found(["many", "few"]) == [keys[0]]
    assert await found(["few"]) == keys[2:]


def test_no_more_common_words_are_remembered_than_asked_for() -> None:
    common = CommonTokens(size=2)
    for token in ("a", "b", "a", "c"):
        common.add(1, token)
    assert [common.holds(1, token) for token in "abc"] == [True, False, True]
    assert not common.holds(2, "a")


async def test_words_of_one_namespace_are_not_found_in_another(catalog: Catalog, ns: int) -> None:
    other = (await support.namespace(catalog, "robot-2")).ns
    await indexed(catalog, ns, ["secret"])
    assert (await catalog.lexical(other, ["secret"], limit=5)).keys.tolist() == []
    assert await catalog.document_frequency(other, ["secret"]) == ({}, 0)


def no_space(character: str) -> bool:
    return not character.isspace()


words = st.text(st.characters(exclude_categories=["Cs", "Z", "Cc"]).filter(no_space), min_size=1, max_size=4)


@settings(max_examples=15, deadline=None)
@given(st.lists(words.map(str.lower), min_size=1, max_size=30, unique=True))
def test_any_word_without_spaces_is_found(tokens: list[str]) -> None:
    async def check() -> None:
        with tempfile.TemporaryDirectory() as folder:
            catalog = SqliteCatalog(Path(folder) / "catalog.db", readers=1)
            await catalog.open()
            try:
                ns = (await support.namespace(catalog)).ns
                keys = await indexed(catalog, ns, tokens)
                for key, token in zip(keys, tokens, strict=True):
                    assert key in (await catalog.lexical(ns, [token], limit=100)).keys.tolist(), token
            finally:
                await catalog.close()

    asyncio.run(check())


async def test_frequencies_of_a_large_namespace_follow_its_growth(
    catalog: SqliteCatalog, ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frequencies, "EXACT_BELOW", 10)
    cache = frequencies.FrequencyCache(size=2)
    asked: list[str] = []
    count = lexical.document_frequency

    def counting(connection: sa.Connection, ns: int, tokens: Sequence[str]) -> tuple[Mapping[str, int], int]:
        asked.extend(tokens)
        return count(connection, ns, tokens)

    monkeypatch.setattr(lexical, "document_frequency", counting)

    async def of(*tokens: str) -> tuple[Mapping[str, int], int]:
        return await catalog._read(lambda c: cache.of(c, ns, tokens))

    await indexed(catalog, ns, ["a b"] * 10 + ["a"] * 10)
    assert await of("a", "b", "none") == ({"a": 20, "b": 10}, 20)
    assert await of("b", "none") == ({"b": 10}, 20)
    assert asked == ["a", "b", "none"]
    keys = await support.store_keys(catalog, ns, 10, prefix="later")
    members = [support.placement(key, 1, 1, lexical="b") for key in keys]
    await catalog.apply_plan(ns, PlacementPlan(placements=members), now_ns=NOW)
    assert await of("b") == ({"b": 20}, 30)
    assert asked[3:] == ["b"]
