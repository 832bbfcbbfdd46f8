"""A brute-force check of a catalog file: every count, sum, digest and reference, made anew from the memories."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clag_server.catalog.schema import ChangeKind, metadata
from clag_server.types.digest import placements_digest
from clag_server.types.memory import MemoryState

_PLACED_STATES = {MemoryState.EMBEDDED, MemoryState.ROUTED, MemoryState.EVOLVED}
_WAITING_STATES = {MemoryState.STORED, MemoryState.EMBEDDED, MemoryState.ROUTED}
_KEEPS_NAMESPACES = {"operations"}
"""Tables that tell of namespaces which are gone."""


@dataclass(frozen=True)
class _File:
    """An open catalog file, and the memories of one namespace by key."""

    connection: sqlite3.Connection
    ns: int
    memories: dict[int, sqlite3.Row]

    def rows(self, sql: str) -> list[sqlite3.Row]:
        return self.connection.execute(sql, {"ns": self.ns}).fetchall()

    @property
    def placed(self) -> list[sqlite3.Row]:
        return [memory for memory in self.memories.values() if memory["placement_id"] is not None]

    @property
    def ids(self) -> dict[str, int]:
        return {memory["memory_id"]: key for key, memory in self.memories.items()}


def assert_file_consistent(path: Path) -> None:
    """Check a catalog file (open elsewhere or not) as of its last commit.

    A namespace that is being deleted may miss any of its rows; only what is left in other namespaces counts.
    """
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("BEGIN")
        assert connection.execute("PRAGMA quick_check").fetchone()[0] == "ok"
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        known = connection.execute("SELECT * FROM namespaces").fetchall()
        _check_numbers(connection)
        _check_no_orphans(connection, {row["ns"] for row in known})
        for namespace in known:
            if not namespace["deleting"]:
                _check_namespace(connection, namespace)


def _check_namespace(connection: sqlite3.Connection, namespace: sqlite3.Row) -> None:
    ns = namespace["ns"]
    found = connection.execute("SELECT * FROM memories WHERE ns = ? ORDER BY key", (ns,)).fetchall()
    file = _File(connection, ns, {row["key"]: row for row in found})
    _check_counts(file, namespace)
    _check_places(file)
    _check_sessions(file)
    _check_episodes(file, namespace)
    _check_clusters(file, namespace)
    _check_references(file)
    _check_outbox(file, namespace)
    rows = file.rows(f"SELECT rowid FROM fts_{ns} ORDER BY rowid")  # noqa: S608 (our integer)
    assert [row[0] for row in rows] == [memory["key"] for memory in file.placed], "full-text rows"


def _check_numbers(connection: sqlite3.Connection) -> None:
    """No number in use is above the last one given out; revisions name one change each."""
    last = connection.execute("SELECT * FROM counters").fetchone()
    for column, counter, table in (
        ("key", "key", "memories"),
        ("revision", "revision", "memories"),
        ("revision", "revision", "changes"),
        ("revision", "revision", "memory_history"),
        ("placement_id", "placement", "memories"),
        ("placement_id", "placement", "index_ops"),
        ("seq", "outbox", "index_ops"),
    ):
        highest = connection.execute(f"SELECT MAX({column}) FROM {table}").fetchone()[0]  # noqa: S608
        assert highest is None or highest <= last[counter], f"{table}.{column}"
    deleted = {ChangeKind.MEMORY_DELETED}
    for row in connection.execute("SELECT kind, memory_id FROM changes"):
        assert (row["memory_id"] is not None) == (row["kind"] in deleted), (
            "ids in the log are those of deleted ones"
        )


def _check_no_orphans(connection: sqlite3.Connection, known: set[int]) -> None:
    """No row and no full-text table is of a namespace that is not there."""
    for table in metadata.tables.values():
        if "ns" in table.c and table.name not in _KEEPS_NAMESPACES:
            rows = connection.execute(f"SELECT DISTINCT ns FROM {table.name}")  # noqa: S608 (our tables)
            present = {row[0] for row in rows}
            assert present <= known, f"{table.name} of namespaces that are gone"
    names = connection.execute("SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL TABLE %'")
    assert {row[0] for row in names} == {f"{kind}_{ns}" for ns in known for kind in ("fts", "terms")}
    orphans = "SELECT COUNT(*) FROM failures WHERE key NOT IN (SELECT key FROM memories)"
    assert connection.execute(orphans).fetchone()[0] == 0


def _check_counts(file: _File, namespace: sqlite3.Row) -> None:
    assert namespace["memories"] == len(file.memories), "count of memories"
    assert namespace["created"] - namespace["deleted"] == len(file.memories), "created and deleted"
    assert namespace["placed"] == len(file.placed), "count of placements"
    digest = placements_digest([m["placement_id"] for m in file.placed], [m["cluster"] for m in file.placed])
    assert namespace["placed_digest"] == digest, "digest of placements"


def _check_places(file: _File) -> None:
    """A memory has all of a place or nothing of it, as its state says."""
    for memory in file.memories.values():
        place = [memory[name] is not None for name in ("placement_id", "cluster", "episode")]
        assert len(set(place)) == 1, f"memory {memory['key']} has half a place"
        if memory["state"] != MemoryState.QUARANTINED:
            assert place[0] == (memory["state"] in _PLACED_STATES), f"memory {memory['key']}: state and place"
        assert memory["embedding"] is not None or not place[0]
        assert memory["embedding"] is not None or not memory["client_embedding"]
    ids = [memory["placement_id"] for memory in file.placed]
    assert len(ids) == len(set(ids)), "placement ids are unique"
    for row in file.rows("SELECT f.key, f.state FROM failures f JOIN memories m USING (key) WHERE m.ns = :ns"):
        assert row["state"] in _WAITING_STATES
        assert row["state"] == file.memories[row["key"]]["state"], f"memory {row['key']} failed in another state"


def _check_sessions(file: _File) -> None:
    """Positions in a session are given out once."""
    following = {
        row[0]: row[1] for row in file.rows("SELECT session_id, next_position FROM sessions WHERE ns = :ns")
    }
    used = Counter((m["session_id"], m["session_position"]) for m in file.memories.values())
    for (session_id, position), times in used.items():
        assert times == 1, "a position was given out twice"
        assert position < following[session_id]


def _check_episodes(file: _File, namespace: sqlite3.Row) -> None:
    found = {row["episode"]: row for row in file.rows("SELECT * FROM episodes WHERE ns = :ns")}
    assert {memory["episode"] for memory in file.placed} <= found.keys(), "episodes of memories exist"
    for number, episode in found.items():
        members = [memory for memory in file.placed if memory["episode"] == number]
        assert number < namespace["next_episode"]
        assert episode["memory_count"] == len(members), f"episode {number}: count"
        assert members or episode["open"], f"episode {number} is closed and empty"
        assert {memory["cluster"] for memory in members} <= {episode["cluster"]}, f"episode {number}: cluster"
        _assert_sum(episode["vector_sum"], [_vector(memory["embedding"]) for memory in members])


def _check_clusters(file: _File, namespace: sqlite3.Row) -> None:
    found = {row["cluster"]: row for row in file.rows("SELECT * FROM clusters WHERE ns = :ns")}
    episodes = file.rows("SELECT * FROM episodes WHERE ns = :ns")
    assert {memory["cluster"] for memory in file.placed} | {e["cluster"] for e in episodes} <= found.keys()
    for number, cluster in found.items():
        closed = [_vector(e["vector_sum"]) for e in episodes if e["cluster"] == number and not e["open"]]
        assert number < namespace["next_cluster"]
        assert cluster["memory_count"] == sum(m["cluster"] == number for m in file.placed), f"cluster {number}"
        assert cluster["closed_episodes"] == len(closed), f"cluster {number}: closed episodes"
        _assert_sum(cluster["vector_sum"], [vector / (float(np.linalg.norm(vector)) or 1.0) for vector in closed])
        assert set(json.loads(cluster["representatives"])) <= file.memories.keys(), f"cluster {number}: members"


def _check_references(file: _File) -> None:
    """Links, supersession and history name memories that are there; nothing is left of what others said of one."""
    links = {key: json.loads(memory["links"]) for key, memory in file.memories.items()}
    targets = {(file.ids.get(link[0]), key) for key, of_one in links.items() for link in of_one}
    rows = file.rows("SELECT target, source FROM link_targets WHERE ns = :ns")
    assert {(row["target"], row["source"]) for row in rows} == targets, "link targets"
    superseding = {memory["superseded_by"] for memory in file.memories.values()} - {""}
    assert superseding <= file.ids.keys(), "superseded by a memory that is there"
    for row in file.rows("SELECT key, old FROM memory_history WHERE ns = :ns"):
        assert row["key"] in file.memories, "history of a memory that is gone"
        for link in json.loads(json.loads(row["old"]).get("links", "[]")):
            assert link[0] in file.ids or link[2] == "", "a reason for a link to a memory that is gone"


def _check_outbox(file: _File, namespace: sqlite3.Row) -> None:
    """The outbox leads to the current placements, from wherever the index has got to."""
    ops = file.rows("SELECT * FROM index_ops WHERE ns = :ns ORDER BY seq")
    if ops:
        assert ops[-1]["seq"] == namespace["outbox_head"]
    current = {memory["placement_id"]: memory["cluster"] for memory in file.placed}
    there: dict[int, int] = {}
    gone: set[int] = set()
    for op in ops:
        number = op["placement_id"]
        assert number not in gone, "a placement id came back"
        if op["put"]:
            assert number not in there
            there[number] = op["cluster"]
        else:
            assert there.pop(number, op["cluster"]) == op["cluster"], "a DELETE names another partition"
            gone.add(number)
    assert there.items() <= current.items(), "what was put is current"
    assert not gone & current.keys(), "what was deleted is not current"
    if there:  # placement ids ascend with the outbox: what is younger than its first PUT is in it
        assert {number for number in current if number > min(there)} <= there.keys(), "a placement without PUT"


def _vector(blob: bytes) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.frombuffer(blob, dtype=np.float32)


def _assert_sum(stored: bytes, parts: Iterable[np.ndarray[tuple[int], np.dtype[np.float32]]]) -> None:
    vectors = list(parts)
    expected = np.sum(vectors, axis=0) if vectors else np.zeros(len(stored) // 4)
    np.testing.assert_allclose(_vector(stored), expected, atol=1e-4)
