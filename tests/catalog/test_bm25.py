"""BM25 as it is written down, and the same from the full-text index."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clag_server.catalog import lexical
from clag_server.catalog.bm25 import postings_of, scored
from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.memory.lexical import tokens as words_of
from tests.catalog.test_lexical import indexed


def slow(documents: list[list[str]], query: list[str]) -> dict[int, float]:
    """The formula of Robertson and Zaragoza, one document after the other."""
    mean = sum(map(len, documents)) / len(documents)
    found = {}
    for number, document in enumerate(documents):
        total = 0.0
        for token in dict.fromkeys(query):
            holders = sum(token in other for other in documents)
            if count := document.count(token):
                idf = max(math.log((len(documents) - holders + 0.5) / (holders + 0.5)), 1e-6)
                damped = 0.9 * (1 - 0.4 + 0.4 * len(document) / mean)
                total += idf * count * 1.9 / (count + damped)
        if total:
            found[number] = total
    return found


letters = st.sampled_from("abcde")


@settings(max_examples=25)
@given(st.lists(st.lists(letters, min_size=1, max_size=12), min_size=1, max_size=12), st.lists(letters, max_size=4))
def test_scores_are_those_of_the_formula(documents: list[list[str]], query: list[str]) -> None:
    held = []
    for token in dict.fromkeys(query):
        rows = [n for n, document in enumerate(documents) for _ in range(document.count(token))]
        lengths = np.array([len(documents[n]) for n in rows], dtype=np.float64)
        held.append(postings_of(np.array(rows, dtype=np.int64), lengths))
    mean = sum(map(len, documents)) / len(documents)
    keys, scores = scored(held, memories=len(documents), mean_length=mean)
    expected = slow(documents, query)
    assert keys.tolist() == sorted(expected)
    np.testing.assert_allclose(scores, [expected[key] for key in keys.tolist()])


async def test_the_index_scores_as_the_formula_and_forgets_what_was_removed(
    catalog: SqliteCatalog, ns: int
) -> None:
    long = ["filler"] * 200 + ["a"]
    documents = ["a b b c".split(), "a a".split(), ["b"], "c d e e".split(), long, ["c"]]
    keys = await indexed(catalog, ns, [" ".join(document) for document in documents])
    hits = await catalog.lexical(ns, ["b", "a", "e"], limit=10)
    expected = slow(documents, ["b", "a", "e"])
    assert dict(zip(hits.keys.tolist(), hits.scores.tolist(), strict=True)) == pytest.approx(
        {keys[number]: score for number, score in expected.items()}
    )
    await catalog._write(lambda tx: lexical.remove(tx, ns, [keys[4], keys[2]]))
    rest = [document for number, document in enumerate(documents) if number not in (4, 2)]
    after = await catalog._read(lambda c: lexical.search(c, ns, ["b"], limit=9))
    assert after.keys.tolist() == [keys[0]]
    assert after.scores.tolist() == pytest.approx([slow(rest, ["b"])[0]])
    back = [(keys[number], " ".join(documents[number])) for number in (2, 4)]
    await catalog._write(lambda tx: lexical.add(tx, ns, back))
    again = await catalog.lexical(ns, ["b", "a", "e"], limit=10)
    assert again.scores.tolist() == pytest.approx(hits.scores.tolist())


@pytest.mark.parametrize(
    ("block", "numbers"),
    [
        (b"", []), (b"\x11", [17]), (b"\x7f\x01", [127, 1]), (b"\x81\x00", [128]), (b"\x82\x2c\x05", [300, 5]),
        (b"\xff" * 8 + b"\x03", [(1 << 64) - 1 - 0xFC]),
    ],
)  # fmt: skip
def test_lengths_are_read_as_sqlite_writes_them(block: bytes, numbers: list[int]) -> None:
    assert lexical._varints(block) == numbers


def test_the_index_keeps_every_token_of_ours_as_it_is() -> None:
    """FTS5 folds letters by tables of its own: a token that it changed would be looked up under another name."""
    folded = {token for point in range(0x110000) if not 0xD800 <= point < 0xE000 for token in words_of(chr(point))}
    ours = sorted(folded)
    assert len(ours) > 100_000
    assert {"é", "猫", "ж"} <= folded
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"CREATE VIRTUAL TABLE f USING fts5(tokens, tokenize='{lexical._TOKENIZE}')")
        connection.execute("CREATE VIRTUAL TABLE t USING fts5vocab(f, instance)")
        connection.executemany("INSERT INTO f (rowid, tokens) VALUES (?, ?)", list(enumerate(ours)))
        kept = dict(connection.execute("SELECT doc, term FROM t"))
    assert [token for number, token in enumerate(ours) if kept.get(number) != token] == []
