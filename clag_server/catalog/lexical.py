"""The full-text index: one FTS5 table per namespace, `fts_<ns>`, whose row ids are the memories' keys.

The domain makes the tokens (stems, CJK bigrams, ...); FTS5 must only split at spaces. Its unicode61 tokenizer does
that when every category but the separators counts as part of a token, and diacritics are kept. Table names are
made of our integers; tokens are always quoted FTS5 strings, so a query is never query syntax.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import sqlalchemy as sa

from clag_server.catalog.api import LexicalHits
from clag_server.catalog.common_tokens import CommonTokens
from clag_server.catalog.connections import driver_of
from clag_server.catalog.schema import namespaces
from clag_server.catalog.transaction import WriteTx

MAX_QUERY_TOKENS: Final = 256
"""Distinct tokens of a query that are looked up, the first ones. A 32 KiB text has about 5,000."""

MAX_POSTINGS: Final = 4_000
"""Memories that one search scores, about 1 us each. A query whose words are in more is searched by its rarest."""

_TOKENIZE: Final = "unicode61 remove_diacritics 0 categories ''L* M* N* P* S* C*''"


def _name(ns: int) -> str:
    return f"fts_{int(ns)}"


def create_index(tx: WriteTx, ns: int) -> None:
    """Create the index of a new namespace."""
    tx.connection.exec_driver_sql(f"CREATE VIRTUAL TABLE {_name(ns)} USING fts5(tokens, tokenize='{_TOKENIZE}')")


def drop_index(tx: WriteTx, ns: int) -> None:
    """Remove the index of a namespace that is gone."""
    tx.connection.exec_driver_sql(f"DROP TABLE IF EXISTS {_name(ns)}")


def add(tx: WriteTx, ns: int, rows: Sequence[tuple[int, str]]) -> None:
    """Index memories that are not indexed: (key, space-joined tokens)."""
    tx.executemany(f"INSERT INTO {_name(ns)} (rowid, tokens) VALUES (?, ?)", rows)  # noqa: S608 (our integer)


def remove(tx: WriteTx, ns: int, keys: Iterable[int]) -> None:
    """Take memories out of the index; their tokens are gone at once."""
    tx.executemany(f"DELETE FROM {_name(ns)} WHERE rowid = ?", [(key,) for key in keys])  # noqa: S608


def search(
    connection: sa.Connection,
    ns: int,
    tokens: Sequence[str],
    *,
    limit: int,
    postings: int = MAX_POSTINGS,
    common: CommonTokens | None = None,
) -> LexicalHits:
    """Return the memories that hold any of the tokens, by BM25 (k1 1.2, b 0.75, FTS5's own), ties by key.

    In a namespace so large that the tokens are in more than `postings` memories, the rarest of them are searched,
    as many as stay within; a single token that is in more is looked for among its newest memories. A namespace that
    was deleted meanwhile holds none.
    """
    wanted: Sequence[str] = _distinct(tokens)
    placed = connection.scalar(sa.select(namespaces.c.placed).where(namespaces.c.ns == ns)) if wanted else None
    rows: Sequence[Sequence[Any]] = ()
    if placed is not None:
        after = -1
        if placed > postings:
            wanted, after = _affordable(connection, ns, wanted, postings, common or CommonTokens())
        query = " OR ".join(_quoted(token) for token in wanted)
        rows = driver_of(connection).execute(_search_sql(ns), (query, after, limit, ns)).fetchall()
    return LexicalHits(
        keys=np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows)),
        episodes=np.fromiter((row[1] for row in rows), dtype=np.int64, count=len(rows)),
        scores=np.fromiter((-row[2] for row in rows), dtype=np.float64, count=len(rows)),
    )


def _affordable(
    connection: sa.Connection, ns: int, tokens: Sequence[str], postings: int, common: CommonTokens
) -> tuple[Sequence[str], int]:
    """Return the rarest tokens that are in `postings` memories together, and the key to search after."""
    table, matches = _table(ns)
    some = sa.select(sa.literal(1)).select_from(table).where(matches).limit(postings + 1).subquery()
    count = sa.select(sa.func.count()).select_from(some)
    found: list[tuple[int, str]] = []
    for token in tokens:
        known = common.holds(ns, token)
        number = postings + 1 if known else connection.scalar(count, {"query": _quoted(token)}) or 0
        found.append((number, token))
        if number > postings and not known:
            common.add(ns, token)
    chosen: list[str] = []
    total = 0
    for number, token in sorted(found, key=lambda pair: pair[0]):
        if chosen and total + number > postings:
            break
        chosen.append(token)
        total += number
    if total <= postings:
        return [token for token in tokens if token in chosen], -1
    newest = sa.select(table.c.rowid).where(matches).order_by(table.c.rowid.desc()).limit(1).offset(postings)
    return chosen, connection.scalar(newest, {"query": _quoted(chosen[0])}) or -1


def document_frequency(connection: sa.Connection, ns: int, tokens: Sequence[str]) -> tuple[Mapping[str, int], int]:
    """Count the memories that hold each token, and all that are indexed."""
    total = indexed(connection, ns)
    found: dict[str, int] = {}
    if total:
        table, matches = _table(ns)
        statement = sa.select(sa.func.count()).select_from(table).where(matches)
        for token in _distinct(tokens):
            found[token] = connection.scalar(statement, {"query": _quoted(token)}) or 0
    return {token: count for token, count in found.items() if count}, total


def indexed(connection: sa.Connection, ns: int) -> int:
    """Count the memories in a namespace's full-text index."""
    return connection.scalar(sa.select(namespaces.c.placed).where(namespaces.c.ns == ns)) or 0


def _search_sql(ns: int) -> str:
    """Return key, episode and FTS5's bm25() (negative, better is smaller) of the best hits; plain SQL for the hint.

    Parameters: the query, the key to search after, the limit, the namespace. The hint keeps SQLite from reading the
    wide rows of the hits for their episodes, which took most of a search's time.
    """
    name = _name(ns)
    best = (
        f"SELECT rowid, bm25({name}) AS score FROM {name} WHERE {name} MATCH ? AND rowid > ?"  # noqa: S608
        " ORDER BY score, rowid LIMIT ?"
    )
    return (
        f"SELECT m.key, m.episode, b.score FROM ({best}) AS b"  # noqa: S608 (names of our integers)
        " JOIN memories AS m INDEXED BY memories_key ON m.key = b.rowid"
        " WHERE m.ns = ? AND m.episode IS NOT NULL ORDER BY b.score, b.rowid"
    )


def _table(ns: int) -> tuple[sa.TableClause, sa.ColumnElement[bool]]:
    """Return the index as a table, and the condition that it matches the parameter `query`."""
    table = sa.table(_name(ns), sa.column("rowid", sa.BigInteger))
    return table, sa.literal_column(_name(ns)).bool_op("MATCH")(sa.bindparam("query", type_=sa.Text))


def _distinct(tokens: Sequence[str]) -> list[str]:
    return [token for token in dict.fromkeys(tokens) if token.strip()][:MAX_QUERY_TOKENS]


def _quoted(token: str) -> str:
    return '"' + token.replace('"', '""') + '"'
