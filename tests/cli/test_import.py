"""Imports on the command line, with a real server: bad rows, damaged files, and the same file again."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from clag.v1 import admin_service_pb2 as pb
from clag.v1 import memory_service_pb2 as memory_pb
from clag.v1 import types_pb2

from clag_server.cli.transfer_files import line_of, read_rows
from tests.cli.command import COMMAND, TIMEOUT_S, Ended, clag, environment
from tests.conftest import ServerMaker
from tests.support.process import ServerProcess, Stubs
from tests.support.reads import listed
from tests.support.transfer import ImportStream

Cli = Callable[..., Ended]


@pytest.fixture
def cli(shared_server: ServerProcess, tmp_path: Path) -> Cli:
    return lambda *arguments: clag(*arguments, "--socket", shared_server.socket, home=tmp_path)


def test_bad_lines_are_told_with_their_numbers_and_the_others_are_imported(
    cli: Cli, stubs: Stubs, namespace: str, tmp_path: Path
) -> None:
    good = line_of(pb.ExportRecord(memory=types_pb2.Memory(memory_id="a", text="good")))
    bad = line_of(pb.ExportRecord(memory=types_pb2.Memory(memory_id="b", text="")))
    file = tmp_path / "mixed.jsonl"
    file.write_bytes(
        b"\n" + good + b"nonsense\n" + bad + b'{"memory": {"memory_id": "c", "text": "x", "new": 1}}\n'
    )
    done = cli("import", file, "-n", namespace)
    assert done.code == 1
    assert [line.split(":")[0] for line in done.err.splitlines()] == ["line 3", "line 4"]
    assert [memory.memory_id for memory in listed(stubs, namespace)] == ["a", "c"]
    assert cli("import", tmp_path / "missing.jsonl", "-n", namespace).code == 2
    (tmp_path / "no.parquet").write_bytes(b"PAR1")
    assert cli("import", tmp_path / "no.parquet", "-n", namespace).code == 2


def test_lines_that_are_no_objects_are_told_in_words(cli: Cli, namespace: str, tmp_path: Path) -> None:
    file = tmp_path / "odd.jsonl"
    file.write_text('null\n[1]\n"text"\nnope\n{"memory": {"memory_id": "a", "text": "x \\ud83d"}}\n', "utf-8")
    done = cli("import", file, "-n", namespace)
    assert done.code == 1
    told = done.err.splitlines()
    assert told[:3] == [f"line {n}: is not a JSON object" for n in (1, 2, 3)]
    assert told[3] == "line 4: is not JSON: Expecting value (column 1)"
    assert "surrogate" in told[4]


def notes(count: int) -> list[bytes]:
    return [
        line_of(pb.ExportRecord(memory=types_pb2.Memory(memory_id=f"m{n}", text=f"note {n}"))) for n in range(count)
    ]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_of_a_file_that_is_cut_off_what_can_be_read_is_stored_and_the_damage_told(
    cli: Cli, stubs: Stubs, namespace: str, tmp_path: Path, suffix: str
) -> None:
    good, cut = notes(40), notes(41)[-1][:-20]
    file = tmp_path / f"cut{suffix}"
    if suffix == ".jsonl":
        file.write_bytes(b"".join(good) + cut)
        reason = "it is cut off in line 41"
    else:
        file.write_bytes(gzip.compress(b"".join(good)) + gzip.compress(cut)[:-9])
        reason = "it is cut off"
    done = cli("import", file, "-n", namespace)
    assert done.code == 2
    assert done.out.startswith("40 rows imported")
    assert done.error() == f"clag: cannot read {file}: {reason}; of the rows before that 40 are stored"
    assert [memory.memory_id for memory in listed(stubs, namespace)] == [f"m{n}" for n in range(40)]
    again = cli("import", file, "-n", namespace, "--json")
    assert again.code == 2
    assert again.document()["damage"] == f"cannot read {file}: {reason}"
    assert (again.document()["rows_in_run"], again.document()["rows_before"]) == (0, 40)


@pytest.mark.parametrize(
    ("name", "content", "arguments", "code"),
    [
        ("empty.jsonl", b"", (), 0),
        ("blank.jsonl", b"\n \n", (), 0),
        ("cut.jsonl.gz", gzip.compress(b'{"memory": {"text": "one row"}}', mtime=0)[:15], (), 2),
        ("cut.jsonl", b'{"memory": {"te', (), 2),
        ("damaged.jsonl.gz", gzip.compress(b"x", mtime=0)[:10] + b"\xff" * 20, (), 2),
        ("other.jsonl.gz", b"no gzip", (), 2),
        ("parquet.jsonl", b"PAR1\x00\x01\n", (), 2),
        ("empty.json", b"[]", ("--from", "mem0"), 0),
        ("cut.json", b'[{"memory": "te', ("--from", "mem0"), 2),
        ("parquet.json", b"PAR1\x00\x01\n", ("--from", "mem0"), 2),
        ("graphiti.json", b'[{"uuid": "a", "content": "x", "group_id": "g"}]', ("--from", "mem0"), 2),
    ],
)
def test_an_import_without_a_row_makes_no_namespace(
    cli: Cli,
    stubs: Stubs,
    namespace: str,
    tmp_path: Path,
    name: str,
    content: bytes,
    arguments: tuple[str, ...],
    code: int,
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    done = cli("import", file, "-n", namespace, *arguments)
    assert done.code == code
    assert done.out == ("" if code else "no rows: nothing was sent\n")
    assert (done.err == "") == (code == 0)
    there = stubs.admin.ListNamespaces(pb.ListNamespacesRequest(page_size=1000), timeout=TIMEOUT_S).namespaces
    assert namespace not in [one.namespace for one in there]


def test_a_file_that_was_imported_says_so_and_is_loaded_once_more_with_again(
    cli: Cli, stubs: Stubs, namespace: str, tmp_path: Path
) -> None:
    file = tmp_path / "notes.jsonl"
    file.write_bytes(b"".join(notes(5)))
    assert (
        cli("import", file, "-n", namespace).out == f"5 rows imported into {namespace}, 0 were there, 0 rejected\n"
    )
    for memory_id in ("m1", "m3"):
        stubs.memory.DeleteMemory(
            memory_pb.DeleteMemoryRequest(namespace=namespace, memory_id=memory_id), timeout=TIMEOUT_S
        )
    second = cli("import", file, "-n", namespace)
    assert (second.code, second.out) == (
        0,
        "0 rows in this run; 5 were imported before under this file's name: use --again to load them once more\n",
    )
    assert len(listed(stubs, namespace)) == 3
    counts = cli("import", file, "-n", namespace, "--json").document()
    assert [counts[key] for key in ("rows_in_run", "rows_before", "imported", "duplicates")] == [0, 5, 5, 0]
    again = cli("import", file, "-n", namespace, "--again")
    assert again.out == f"2 rows imported into {namespace}, 3 were there, 0 rejected\n"
    assert {memory.memory_id for memory in listed(stubs, namespace)} == {f"m{n}" for n in range(5)}
    assert cli("import", file, "-n", namespace, "--again", "--stream-id", "x").code == 2


def test_an_import_that_goes_on_says_what_was_there_before_and_what_came_now(
    cli: Cli, stubs: Stubs, namespace: str, tmp_path: Path
) -> None:
    file = tmp_path / "notes.jsonl"
    file.write_bytes(b"".join(notes(5)))
    records = [row.record for row in read_rows(file)]
    with ImportStream(stubs, namespace, "mine") as stream:
        stream.batch(records[:2])
        stream.acked()
    done = cli("import", file, "-n", namespace, "--stream-id", "mine")
    assert (
        done.out == f"3 rows in this run, 2 before; in all 5 imported into {namespace}, 0 were there, 0 rejected\n"
    )
    second = cli("import", file, "-n", namespace, "--stream-id", "mine")
    assert "5 were imported before under the name mine" in second.out


def test_an_import_that_was_killed_goes_on_and_stores_each_row_once(
    make_server: ServerMaker, tmp_path: Path
) -> None:
    server = make_server().start()
    rows = [pb.ExportRecord(memory=types_pb2.Memory(memory_id=f"m{n}", text=f"note {n}")) for n in range(3000)]
    file = tmp_path / "many.jsonl"
    file.write_bytes(b"".join(line_of(row) for row in rows))
    command = [*COMMAND, "import", str(file), "-n", "many", "--socket", str(server.socket)]
    stubs = server.connect()
    running = subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    _wait_for_memories(stubs, "many")
    running.send_signal(signal.SIGKILL)
    running.communicate(timeout=TIMEOUT_S)
    done = clag("import", file, "-n", "many", "--socket", server.socket, "--json", home=tmp_path)
    assert done.code == 0
    assert (done.document()["imported"], done.document()["duplicates"]) == (3000, 0)
    assert [memory.memory_id for memory in listed(stubs, "many", page_size=1000)] == [f"m{n}" for n in range(3000)]


def _wait_for_memories(stubs: Stubs, namespace: str) -> None:
    while True:
        names = stubs.admin.ListNamespaces(pb.ListNamespacesRequest(page_size=1000), timeout=20).namespaces
        if namespace in [one.namespace for one in names] and listed(stubs, namespace):
            return


def test_files_of_other_systems_are_imported_with_their_bad_rows_told(
    cli: Cli, stubs: Stubs, namespace: str, tmp_path: Path
) -> None:
    file = tmp_path / "mem0.json"
    rows = [{"id": "1", "memory": "Likes tea", "user_id": "ana"}, {"id": "2", "memory": ""}]
    file.write_text(json.dumps({"results": rows}, indent=1), encoding="utf-8")
    done = cli("import", file, "-n", namespace, "--from", "mem0")
    assert done.code == 1
    assert done.err == "line 8: memory: there is no text\n"
    one_line = tmp_path / "one-line.json"
    one_line.write_text(json.dumps([*rows, {"id": "3", "memory": "half \ud83d"}]), encoding="utf-8")
    told = cli("import", one_line, "-n", namespace, "--from", "mem0")
    assert told.err.splitlines() == [
        "item 2: memory: there is no text",
        "item 3: memory: is not well-formed Unicode (a lone surrogate)",
    ]
    (memory,) = listed(stubs, namespace)
    assert (memory.text, memory.attributes["user_id"].string_value) == ("Likes tea", "ana")
    assert cli("import", file, "-n", namespace, "--from", "mem0", "--keep-organization").code == 2
