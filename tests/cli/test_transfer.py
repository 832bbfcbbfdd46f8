"""Export and its way back, watch, backup and restore on the command line, with a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clag.v1 import admin_service_pb2 as pb
from clag.v1 import memory_service_pb2 as memory_pb
from clag.v1 import types_pb2

from clag_server.cli.export import _Partial
from clag_server.cli.transfer_files import line_of, read_rows, write_parquet
from tests.cli.command import TIMEOUT_S, Ended, clag
from tests.conftest import ServerMaker
from tests.support.ingest import store
from tests.support.process import ServerProcess, Stubs
from tests.support.reads import ask, listed
from tests.support.transfer import export

TEXTS = [f"{what} {n} in hall {n % 7}" for n in range(10) for what in ("a red pallet", "the tired visitor", "lamp")]


class Cli:
    def __init__(self, server: ServerProcess, home: Path) -> None:
        self.server, self.home = server, home

    def __call__(self, *arguments: str | Path) -> Ended:
        return clag(*arguments, "--socket", self.server.socket, home=self.home)


@pytest.fixture
def cli(shared_server: ServerProcess, tmp_path: Path) -> Cli:
    return Cli(shared_server, tmp_path)


@pytest.fixture
def filled(stubs: Stubs, namespace: str) -> str:
    items = [
        types_pb2.MemoryInput(memory_id=f"m{n}", text=text, session_id=f"s{n % 2}") for n, text in enumerate(TEXTS)
    ]
    store(stubs, namespace, items, level=memory_pb.ACK_LEVEL_ORGANIZED)
    return namespace


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet"])
def test_a_file_of_any_format_gives_the_same_namespace_back(
    cli: Cli, stubs: Stubs, filled: str, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / f"all{suffix}"
    done = cli("export", "-n", filled, "--out", out, "--embeddings")
    assert (done.code, done.err) == (0, "")
    assert list(tmp_path.glob("*.partial*")) == []
    assert out.stat().st_mode & 0o077 == 0
    target = f"{filled}-b"
    loaded = cli("import", out, "-n", target, "--keep-organization")
    assert (loaded.code, loaded.err) == (0, "")
    before, after = (export(stubs, name, include_embeddings=True) for name in (filled, target))
    assert [_content(r) for r in before if r.HasField("memory")] == [
        _content(r) for r in after if r.HasField("memory")
    ]
    assert f"{len(before):,} rows imported" in loaded.out
    again = cli("import", out, "-n", target, "--keep-organization", "--json")
    assert again.document()["imported"] == len(before)
    assert len(listed(stubs, target, page_size=1000)) == len(TEXTS)


def _content(record: pb.ExportRecord) -> tuple[object, ...]:
    m = record.memory
    return (m.memory_id, m.text, m.event_time.ToJsonString(), m.create_time.ToJsonString(), tuple(m.embedding))


def test_filters_and_existing_files_are_respected(cli: Cli, filled: str, tmp_path: Path) -> None:
    out = tmp_path / "some.jsonl"
    assert cli("export", "-n", filled, "--out", out, "--session", "s1").code == 0
    sessions = {row.record.memory.session_id for row in read_rows(out) if row.record.HasField("memory")}
    assert sessions == {"s1"}
    refused = cli("export", "-n", filled, "--out", out)
    assert (refused.code, "exists" in refused.error()) == (2, True)
    assert cli("export", "-n", filled, "--out", tmp_path / "x.csv").code == 2
    assert cli("export", "-n", filled, "--out", out, "--force", "--json").document()["rows"] > len(TEXTS)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_an_interrupted_export_goes_on_at_its_cursor_and_cuts_off_what_was_half_written(
    cli: Cli, stubs: Stubs, namespace: str, tmp_path: Path, suffix: str
) -> None:
    store(stubs, namespace, [types_pb2.MemoryInput(text=f"{n} {'x' * 20_000}") for n in range(100)][:50])
    store(stubs, namespace, [types_pb2.MemoryInput(text=f"{n} {'y' * 20_000}") for n in range(50)], stream_id="b")
    out = tmp_path / f"all{suffix}"
    asked = pb.ExportRequest(namespace=namespace)
    call = stubs.admin.Export(asked, timeout=TIMEOUT_S)
    from clag_server.cli.export import _scope

    partial = _Partial(out, suffix, _scope(namespace, False, None))
    partial.add(next(call))
    partial.add(next(call))
    call.cancel()
    begun = partial.rows
    with partial.path.open("ab") as file:
        file.write(b'{"memory": half a li')
    done = cli("export", "-n", namespace, "--out", out, "--json")
    assert (done.code, done.err) == (0, "")
    rows = [row for row in read_rows(out) if not row.error]
    assert begun < len(rows) == done.document()["rows"]
    ids = [row.record.memory.memory_id for row in rows if row.record.HasField("memory")]
    assert ids == [memory.memory_id for memory in listed(stubs, namespace, page_size=1000)]


def test_an_export_whose_snapshot_is_gone_begins_anew(cli: Cli, filled: str, tmp_path: Path) -> None:
    out = tmp_path / "all.jsonl"
    from clag_server.api.convert_export import Cursor, cursor_to
    from clag_server.api.paging import scope_of
    from clag_server.cli.export import _scope
    from clag_server.memory.exporting import ExportPosition

    scope = scope_of("Export", filled, b"", False, False)
    partial = _Partial(out, ".jsonl", _scope(filled, False, None))
    lost = cursor_to(scope, Cursor("0" * 32, ExportPosition(0), 9))
    partial.add(pb.ExportResponse(records=[pb.ExportRecord()], cursor=lost))
    done = cli("export", "-n", filled, "--out", out)
    assert done.code == 0
    assert "a new export begins" in done.err
    assert sum(row.record.HasField("memory") for row in read_rows(out)) == len(TEXTS)


def test_a_watch_shows_changes_and_where_to_go_on(cli: Cli, stubs: Stubs, filled: str) -> None:
    call = stubs.memory.Watch(memory_pb.WatchRequest(namespace=filled), timeout=TIMEOUT_S)
    after = next(call).through.token
    call.cancel()
    store(stubs, filled, [types_pb2.MemoryInput(text="something new")], stream_id="w")
    shown = cli("watch", "-n", filled, "--after", after, "--kind", "memory-created", "--count", "1")
    assert (shown.code, "something new" in shown.out) == (0, True)
    lines = cli("watch", "-n", filled, "--after", after, "--count", "1", "--json").lines()
    assert lines[0]["checkpoint"] is True
    assert lines[-1]["through"]["token"] != after
    assert cli("watch", "-n", filled, "--after", "nonsense", "--count", "1").code == 2


def test_a_backup_of_a_running_server_restores_to_the_same_memories_and_answers(
    make_server: ServerMaker, tmp_path: Path
) -> None:
    server = make_server().start()
    stubs = server.connect()
    items = [types_pb2.MemoryInput(memory_id=f"m{n}", text=text) for n, text in enumerate(TEXTS)]
    store(stubs, "kept", items, level=memory_pb.ACK_LEVEL_ORGANIZED)
    out = tmp_path / "copy.db"
    done = clag("backup", "--data-dir", server.data_dir, "--out", out, home=tmp_path)
    assert (done.code, done.err) == (0, "")
    store(stubs, "kept", [types_pb2.MemoryInput(memory_id="late", text="after the backup")], stream_id="late")
    before = [hit.memory.memory_id for hit in ask(stubs, "kept", "a red pallet")]
    second = clag("backup", "--data-dir", server.data_dir, "--out", out, home=tmp_path)
    assert (second.code, second.error()) == (
        2,
        f"clag: {out} exists; choose another name: a backup replaces no file",
    )
    restored = make_server("restored")
    refused = clag("restore", out, "--data-dir", server.data_dir, home=tmp_path)
    assert (refused.code, "not empty" in refused.error()) == (2, True)
    back = clag("restore", out, "--data-dir", restored.data_dir, "--json", home=tmp_path)
    assert back.document()["memories"] == len(TEXTS)
    copy = restored.start().connect()
    assert [m.memory_id for m in listed(copy, "kept", page_size=1000)] == [f"m{n}" for n in range(len(TEXTS))]
    assert [hit.memory.memory_id for hit in ask(copy, "kept", "a red pallet")] == [m for m in before if m != "late"]


@pytest.mark.parametrize("damage", ["empty", "cut", "other"])
def test_a_damaged_backup_is_refused_and_leaves_nothing_behind(
    make_server: ServerMaker, tmp_path: Path, damage: str
) -> None:
    file = tmp_path / "bad.db"
    content = {"empty": b"", "cut": b"SQLite format 3\x00" + b"\x00" * 5000, "other": b"no database at all" * 100}
    file.write_bytes(content[damage])
    done = clag("restore", file, "--data-dir", tmp_path / "new", home=tmp_path)
    assert done.code == 2
    assert not (tmp_path / "new").exists()


def rows_of(records: list[pb.ExportRecord], path: Path) -> Iterator[Any]:
    write_parquet(iter(records), path)
    return read_rows(path)


def test_parquet_keeps_every_bit_of_a_record(tmp_path: Path) -> None:
    memory = types_pb2.Memory(memory_id="a", text="naïve 猫", embedding=[0.1, -2.5e-8, 1.0], importance=0.3)
    memory.attributes["ratio"].double_value = 0.1
    records = [
        pb.ExportRecord(namespace=pb.Namespace(namespace="n")),
        pb.ExportRecord(cluster=types_pb2.Cluster(cluster_id="c1", title="t", cohesion=0.123)),
        pb.ExportRecord(memory=memory),
    ]
    assert [row.record for row in rows_of(records, tmp_path / "all.parquet")] == records
    lines = tmp_path / "all.jsonl"
    lines.write_bytes(b"".join(line_of(record) for record in records))
    assert [row.record for row in read_rows(lines)] == records
