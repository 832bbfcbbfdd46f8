"""The catalog of a dead server, checked by brute force on a copy of its files.

A copy, because opening the files recovers them and closing them moves the log into the database: the next server
must find what the kill left.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench.crash_ledger import Seen, Verdict
from clag_server.types.digest import placements_digest
from clag_server.types.memory import MemoryState

_PLACED = (MemoryState.EMBEDDED, MemoryState.ROUTED, MemoryState.EVOLVED)


@contextmanager
def copied(catalog: Path) -> Iterator[sqlite3.Connection]:
    """Open a copy of a catalog's files, as they are."""
    with tempfile.TemporaryDirectory(prefix="clag-check-") as name:
        for path in catalog.parent.glob(f"{catalog.name}*"):
            if not path.name.endswith("-shm"):
                shutil.copy(path, Path(name) / path.name)
        with closing(sqlite3.connect(Path(name) / catalog.name)) as connection:
            yield connection


def look(connection: sqlite3.Connection, namespace: str) -> tuple[list[Seen], Verdict]:
    """Return all memories of a namespace and what the catalog's own counts say wrongly of them."""
    verdict = Verdict()
    for (line,) in connection.execute("PRAGMA quick_check"):
        if line != "ok":
            verdict.misplace(f"the file is damaged: {line}")
    row = connection.execute("SELECT ns FROM namespaces WHERE name = ?", (namespace,)).fetchone()
    if row is None:
        return [], verdict
    ns = int(row[0])
    seen = _memories(connection, ns)
    _counts(connection, ns, verdict)
    _outbox(connection, ns, verdict)
    return seen, verdict


def _memories(connection: sqlite3.Connection, ns: int) -> list[Seen]:
    homes = dict(connection.execute("SELECT episode, cluster FROM episodes WHERE ns = ?", (ns,)))
    clusters = {number for (number,) in connection.execute("SELECT cluster FROM clusters WHERE ns = ?", (ns,))}
    indexed = {key for (key,) in connection.execute(f"SELECT rowid FROM fts_{ns}")}  # noqa: S608 - our integer
    seen = []
    for key, memory_id, text, state, cluster, episode, placement in connection.execute(
        "SELECT key, memory_id, text, state, cluster, episode, placement_id FROM memories WHERE ns = ?", (ns,)
    ):
        wrong = ""
        if cluster is None and state in _PLACED:
            wrong = f"it is in no cluster though its state is {state}"
        elif (cluster is None) is not (episode is None) or (cluster is None) is not (placement is None):
            wrong = f"it is half placed: cluster {cluster}, episode {episode}, placement {placement}"
        elif cluster is not None and cluster not in clusters:
            wrong = f"its cluster {cluster} does not exist"
        elif cluster is not None and homes.get(episode) != cluster:
            wrong = f"its cluster is {cluster}, its episode's is {homes.get(episode)}"
        elif (key in indexed) is not (cluster is not None):
            wrong = f"it is in cluster {cluster} and in the full-text index: {key in indexed}"
        seen.append(Seen(memory_id, text, wrong))
    return seen


def _counts(connection: sqlite3.Connection, ns: int, verdict: Verdict) -> None:
    """Compare every kept count and the digest of placements with the rows."""
    total, placed, digest = connection.execute(
        "SELECT memories, placed, placed_digest FROM namespaces WHERE ns = ?", (ns,)
    ).fetchone()
    rows = connection.execute(
        "SELECT cluster, episode, placement_id FROM memories WHERE ns = ? AND cluster IS NOT NULL", (ns,)
    ).fetchall()
    (there,) = connection.execute("SELECT count(*) FROM memories WHERE ns = ?", (ns,)).fetchone()
    if total != there:
        verdict.misplace(f"the namespace counts {total} memories and has {there}")
    if placed != len(rows):
        verdict.misplace(f"the namespace counts {placed} placed memories and has {len(rows)}")
    if digest != placements_digest([row[2] for row in rows], [row[0] for row in rows]):
        verdict.misplace("the digest of the placements is not that of the rows")
    if len({row[2] for row in rows}) != len(rows):
        verdict.misplace("two memories share a placement")
    for table, column, members in (
        ("clusters", "cluster", Counter(row[0] for row in rows)),
        ("episodes", "episode", Counter(row[1] for row in rows)),
    ):
        statement = f"SELECT {column}, memory_count FROM {table} WHERE ns = ?"  # noqa: S608 - names of ours
        for number, count in connection.execute(statement, (ns,)):
            if count != members[number]:
                verdict.misplace(f"{column} {number} counts {count} memories and has {members[number]}")


def _outbox(connection: sqlite3.Connection, ns: int, verdict: Verdict) -> None:
    """What waits for the index ends with exactly the current placements, as far as it speaks of them."""
    current = dict(
        connection.execute(
            "SELECT placement_id, cluster FROM memories WHERE ns = ? AND placement_id IS NOT NULL", (ns,)
        )
    )
    last: dict[int, tuple[bool, int]] = {}
    for put, placement, cluster in connection.execute(
        "SELECT put, placement_id, cluster FROM index_ops WHERE ns = ? ORDER BY seq", (ns,)
    ):
        last[placement] = (bool(put), cluster)
    for placement, (put, cluster) in last.items():
        if put and current.get(placement) != cluster:
            verdict.misplace(f"the outbox leaves placement {placement} in {cluster}, not {current.get(placement)}")
        if not put and placement in current:
            verdict.misplace(f"the outbox deletes the current placement {placement}")
