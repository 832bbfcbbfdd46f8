"""The full-text index: one FTS5 table per namespace, `fts_<ns>`, whose row ids are the memories' keys.

`terms_<ns>` shows the same index token by token (fts5vocab) and stores nothing. Memories' lengths are read from
FTS5's own tables, as its documentation describes them (SQLite FTS5, "FTS5 data structures").

The domain makes the tokens (stems, CJK bigrams, ...); FTS5 must only split at spaces. Its unicode61 tokenizer does
that when every category but the separators counts as part of a token, and diacritics are kept. Table names are
made of our integers; tokens are always quoted FTS5 strings, so a query is never query syntax.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from clag_server.catalog.api import LexicalHits
from clag_server.catalog.bm25 import Postings, postings_of, scored
from clag_server.catalog.common_tokens import CommonTokens
from clag_server.catalog.connections import driver_of
from clag_server.catalog.schema import namespaces
from clag_server.catalog.transaction import WriteTx

MAX_QUERY_TOKENS: Final = 256
"""Distinct tokens of a query that are looked up, the first ones. A 32 KiB text has about 5,000."""

MAX_POSTINGS: Final = 4_000
"""Memories that one search scores, about 1 us each. A query whose words are in more is searched by its rarest."""

_NONE: Final = -1
"""Below every key."""
_LONGEST_VARINT: Final = 9

_TOKENIZE: Final = "unicode61 remove_diacritics 0 categories ''L* M* N* P* S* C*''"


def _name(ns: int) -> str:
    return f"fts_{int(ns)}"


def _terms(ns: int) -> str:
    return f"terms_{int(ns)}"


def create_index(tx: WriteTx, ns: int) -> None:
    """Create the index of a new namespace."""
    tx.connection.exec_driver_sql(f"CREATE VIRTUAL TABLE {_name(ns)} USING fts5(tokens, tokenize='{_TOKENIZE}')")
    tx.connection.exec_driver_sql(f"CREATE VIRTUAL TABLE {_terms(ns)} USING fts5vocab({_name(ns)}, instance)")


def drop_index(tx: WriteTx, ns: int) -> None:
    """Remove the index of a namespace that is gone."""
    for table in (_terms(ns), _name(ns)):
        tx.connection.exec_driver_sql(f"DROP TABLE IF EXISTS {table}")


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
    """Return the memories that hold any of the tokens, by BM25 (`bm25`), ties by key.

    In a namespace so large that the tokens are in more than `postings` memories, the rarest of them are searched,
    as many as stay within; a single token that is in more is looked for among its newest memories. A namespace that
    was deleted meanwhile holds none.
    """
    wanted: Sequence[str] = _distinct(tokens)
    placed = connection.scalar(sa.select(namespaces.c.placed).where(namespaces.c.ns == ns)) if wanted else None
    if not placed:
        return LexicalHits(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))
    after = _NONE
    if placed > postings:
        wanted, after = _affordable(connection, ns, wanted, postings, common or CommonTokens())
    memories, mean_length = _totals(connection, ns)
    found = [_postings(connection, ns, token, after) for token in wanted]
    keys, scores = scored(found, memories=memories, mean_length=mean_length)
    best = np.lexsort((keys, -scores))[:limit]
    episodes = _episodes(connection, ns, keys[best])
    placed_best = episodes >= 0
    return LexicalHits(keys[best][placed_best], episodes[placed_best], scores[best][placed_best])


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
        return [token for token in tokens if token in chosen], _NONE
    newest = sa.select(table.c.rowid).where(matches).order_by(table.c.rowid.desc()).limit(1).offset(postings)
    return chosen, connection.scalar(newest, {"query": _quoted(chosen[0])}) or _NONE


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


def _postings(connection: sa.Connection, ns: int, token: str, after: int) -> Postings:
    """Return the memories that hold a token, those with keys above `after`.

    Where the index knows the token under another form (FTS5 folds a few letters that Unicode does not), or where
    only the newest holders are wanted, each counts as holding it once.
    """
    driver, size = driver_of(connection), f"{_name(ns)}_docsize"
    rows: list[tuple[int, bytes]] = []
    if after == _NONE:
        each = f"SELECT t.doc, s.sz FROM {_terms(ns)} AS t JOIN {size} AS s ON s.id = t.doc WHERE t.term = ?"  # noqa: S608
        rows = driver.execute(each, (token,)).fetchall()
    if not rows:
        name = _name(ns)
        once = f"SELECT f.rowid, s.sz FROM {name} AS f JOIN {size} AS s ON s.id = f.rowid"  # noqa: S608
        rows = driver.execute(f"{once} WHERE {name} MATCH ? AND f.rowid > ?", (_quoted(token), after)).fetchall()
    return postings_of(
        np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows)),
        np.fromiter((_length(row[1]) for row in rows), dtype=np.float64, count=len(rows)),
    )


def _totals(connection: sa.Connection, ns: int) -> tuple[int, float]:
    """Return how many memories are indexed, and how many tokens they have in the mean."""
    row = driver_of(connection).execute(f"SELECT block FROM {_name(ns)}_data WHERE id = 1").fetchone()  # noqa: S608
    memories, length = (*_varints(row[0]), 0, 0)[:2] if row else (0, 0)
    return memories, max(length, 1) / max(memories, 1)


def _length(block: bytes) -> int:
    """Read the number of tokens of a memory; most have few."""
    return block[0] if len(block) == 1 else _varints(block)[0]


def _varints(block: bytes) -> list[int]:
    """Read SQLite's variable-length integers: seven bits a byte, the highest first, the ninth byte has eight."""
    found: list[int] = []
    value = size = 0
    for byte in block:
        size += 1
        if size == _LONGEST_VARINT:
            value, size = value << 8 | byte, 0
        elif byte < 128:
            value, size = value << 7 | byte, 0
        else:
            value = value << 7 | byte & 127
            continue
        found.append(value)
        value = 0
    return found


def _episodes(connection: sa.Connection, ns: int, keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the episode of each memory (n,), -1 where it has none.

    The hint keeps SQLite from reading the wide rows of the memories, which took most of a search's time.
    """
    sql = (
        "SELECT m.key, m.episode FROM json_each(?) AS k CROSS JOIN memories AS m INDEXED BY memories_key"
        " WHERE m.ns = ? AND m.key = k.value AND m.episode IS NOT NULL"
    )
    homes = dict(driver_of(connection).execute(sql, (json.dumps(keys.tolist()), ns)).fetchall())
    return np.fromiter((homes.get(key, -1) for key in keys.tolist()), dtype=np.int64, count=len(keys))


def _table(ns: int) -> tuple[sa.TableClause, sa.ColumnElement[bool]]:
    """Return the index as a table, and the condition that it matches the parameter `query`."""
    table = sa.table(_name(ns), sa.column("rowid", sa.BigInteger))
    return table, sa.literal_column(_name(ns)).bool_op("MATCH")(sa.bindparam("query", type_=sa.Text))


def _distinct(tokens: Sequence[str]) -> list[str]:
    return [token for token in dict.fromkeys(tokens) if token.strip()][:MAX_QUERY_TOKENS]


def _quoted(token: str) -> str:
    return '"' + token.replace('"', '""') + '"'
