"""A killed process loses nothing that was acknowledged, and stores nothing twice when it comes back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from clag_server.catalog.sqlite import SqliteCatalog
from tests.catalog import support

REPOSITORY = Path(__file__).parents[2]


def run_until(path: Path, acks: int) -> int:
    """Let a child store until it has acknowledged `acks` batches, kill it, and return the last acknowledged seq."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.catalog.crash_child", str(path)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(acks)]
        child.kill()
        lines += child.stdout.readlines()
    assert child.returncode == -9
    return max(int(line) for line in lines if line.endswith("\n"))


async def test_what_was_acknowledged_before_a_kill_is_there_exactly_once(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    for acks in (3, 11, 29):
        acked = run_until(path, acks)
        catalog = SqliteCatalog(path)
        await catalog.open()
        ns = (await support.namespace(catalog)).ns
        position = await catalog.open_stream(ns, "s")
        page = await catalog.list_memories(ns, where=None, after=0, limit=1_000_000)
        await catalog.close()
        assert position.next_seq > acked
        assert [memory.text for memory in page.memories] == [f"note {seq}" for seq in range(1, position.next_seq)]
        assert [memory.session_position for memory in page.memories] == list(range(position.next_seq - 1))
        assert position.created == len(page.memories)
