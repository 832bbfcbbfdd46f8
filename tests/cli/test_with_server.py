"""The command line against a real server with scripted models."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from clag.v1 import admin_service_pb2

from tests.cli.command import COMMAND, TIMEOUT_S, Ended, clag, environment
from tests.conftest import ServerMaker
from tests.support.process import ServerProcess, Stubs

LINES = [
    {"id": "m1", "text": "The dock is in bay B3.", "speaker": "Anna", "session": "s1", "tags": ["dock"]},
    {
        "id": "m2",
        "text": "Red pallet in aisle 7.",
        "speaker": "Kestrel",
        "session": "s1",
        "time": "2026-03-02T06:02:00Z",
    },
    {"id": "m3", "text": "The dock moved to bay B7.", "speaker": "Anna", "session": "s2", "supersedes": "m1"},
]


def jsonl(*values: object) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


class Cli:
    """`clag` with the shared server's socket and a namespace of the test's own."""

    def __init__(self, server: ServerProcess, namespace: str, home: Path) -> None:
        self.server, self.namespace, self.home = server, namespace, home

    def flags(self) -> list[str]:
        return ["--socket", str(self.server.socket), "--namespace", self.namespace]

    def __call__(self, *arguments: str | Path, stdin: str | bytes = b"") -> Ended:
        return clag(*arguments, *self.flags(), home=self.home, stdin=stdin)

    def spawn(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command whose input stays open."""
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*COMMAND, *arguments, *self.flags()], env=environment(self.home), **pipes)


@pytest.fixture
def cli(shared_server: ServerProcess, namespace: str, tmp_path: Path) -> Cli:
    return Cli(shared_server, namespace, tmp_path)


@pytest.fixture
def stored(cli: Cli, tmp_path: Path) -> Cli:
    """The command line, with three organized memories in its namespace."""
    file = tmp_path / "memories.jsonl"
    file.write_text(jsonl(*LINES), encoding="utf-8")
    done = cli("ingest", file, "--ack", "organized")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("3 items: 3 created, 0 duplicates, 0 rejected, 0 quarantined")
    return cli


def count(stubs: Stubs, namespace: str) -> int:
    """Memories in a namespace; 0 while there is no such namespace."""
    listed = stubs.admin.ListNamespaces(admin_service_pb2.ListNamespacesRequest(page_size=1000), timeout=20)
    if namespace not in [one.namespace for one in listed.namespaces]:
        return 0
    stats = stubs.admin.GetStats(admin_service_pb2.GetStatsRequest(namespace=namespace), timeout=20)
    return int(stats.memories.total)


def wait_for(stubs: Stubs, namespace: str, least: int) -> None:
    """Ask until so many memories are stored."""
    deadline = time.monotonic() + TIMEOUT_S
    while count(stubs, namespace) < least:
        assert time.monotonic() < deadline, "the memories did not arrive"


def test_bad_lines_are_told_with_their_numbers_and_the_others_are_stored(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "mixed.jsonl"
    file.write_text(
        jsonl({"text": "one"}) + "\n" + "nonsense\n" + jsonl({"text": "two", "id": "a b"}, {"text": "three"}),
        encoding="utf-8",
    )
    done = cli("ingest", file)
    assert done.code == 1
    first, second = done.err.splitlines()
    assert first.startswith("line 3: is not JSON")
    assert second.startswith("line 4: id: must be ")
    assert done.out.startswith("4 items: 2 created, 0 duplicates, 2 rejected")


def test_a_file_that_was_ingested_adds_nothing_when_it_is_run_again_and_only_its_end_when_it_grew(
    cli: Cli, stubs: Stubs, tmp_path: Path
) -> None:
    file = tmp_path / "grows.jsonl"
    file.write_text(jsonl({"text": "one"}, {"text": "two"}), encoding="utf-8")
    reports = [cli("ingest", "--json", file).document()]
    reports.append(cli("ingest", "--json", file).document())
    with file.open("a", encoding="utf-8") as more:
        more.write(jsonl({"text": "three"}))
    reports.append(cli("ingest", "--json", file).document())
    assert [report["resumed_at"] for report in reports] == [1, 3, 3]
    assert [report["run"]["created"] for report in reports] == [2, 0, 1]
    assert [report["stream"]["created"] for report in reports] == [2, 2, 3]
    assert len({report["stream_id"] for report in reports}) == 1
    assert count(stubs, cli.namespace) == 3


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_ingest_that_was_ended_in_the_middle_goes_on_where_it_was(
    cli: Cli, stubs: Stubs, number: signal.Signals
) -> None:
    lines = [jsonl({"text": f"memory {n} without an id"}) for n in range(400)]
    first = cli.spawn("ingest", "-", "--stream-id", "feed")
    assert first.stdin is not None
    first.stdin.write("".join(lines[:250]).encode())
    first.stdin.flush()
    wait_for(stubs, cli.namespace, 1)
    first.send_signal(number)
    _, err = first.communicate(timeout=TIMEOUT_S)
    if number is signal.SIGINT:
        assert first.returncode == 130
        assert b"items are acknowledged" in err
        assert b"--stream-id feed" in err
        assert len(err.splitlines()) == 1
    second = cli("ingest", "-", "--stream-id", "feed", "--json", stdin="".join(lines))
    assert second.code == 0
    assert second.document()["stream"] == {"created": 400, "duplicates": 0, "rejected": 0, "quarantined": 0}
    assert second.document()["resumed_at"] > 1
    assert count(stubs, cli.namespace) == 400


def test_an_ingest_whose_server_goes_away_says_what_is_safe_and_how_to_go_on(
    make_server: ServerMaker, tmp_path: Path
) -> None:
    server = make_server().start()
    cli = Cli(server, "away", tmp_path)
    lines = [jsonl({"text": f"memory {n}"}) for n in range(5)]
    running = cli.spawn("ingest", "-", "--stream-id", "feed", "--reconnect", "0.2")
    assert running.stdin is not None
    running.stdin.write("".join(lines).encode())
    running.stdin.flush()
    wait_for(server.connect(), "away", 5)
    server.kill()
    _, err = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 3
    (line,) = err.decode().splitlines()
    # What the server stored last it may not have acknowledged any more.
    told = r"clag: the server went away and did not come back: [0-5] items are acknowledged; to go on"
    assert re.match(told, line), line


def test_an_empty_pipe_makes_no_namespace(cli: Cli, stubs: Stubs) -> None:
    done = cli("ingest", "-", stdin="\n")
    assert (done.code, done.out, done.err) == (0, "no items: nothing was sent\n", "")
    listed = stubs.admin.ListNamespaces(admin_service_pb2.ListNamespacesRequest(page_size=1000), timeout=20)
    assert cli.namespace not in [one.namespace for one in listed.namespaces]


def test_a_question_that_comes_before_the_embedding_hears_that_memories_wait(
    make_server: ServerMaker, tmp_path: Path
) -> None:
    server = make_server()
    server.root.mkdir(parents=True, exist_ok=True)
    (server.root / "script.json").write_text('{"embed": "unavailable"}', encoding="utf-8")
    cli = Cli(server.start(), "early", tmp_path)
    assert cli("ingest", "-", stdin=jsonl({"text": "The dock is in B3."}, {"text": "The rain is here."})).code == 0
    told = "No memory was found; 2 memories wait to be embedded, ask again in a moment."
    done = cli("retrieve", "Where is the lorry?")
    assert (done.code, done.err) == (0, "")
    assert told in done.out.splitlines()
    for_programs = cli("retrieve", "Where is the lorry?", "--json")
    assert for_programs.document()["memories"]["hits"] == []
    assert for_programs.err.splitlines() == [told]


def test_a_question_that_finds_nothing_hears_of_archived_clusters(cli: Cli, stubs: Stubs) -> None:
    assert cli("ingest", "-", "--ack", "organized", stdin=jsonl({"text": "The dock is in B3."})).code == 0
    (cluster,) = cli("clusters", "--json").lines()
    assert cli("clusters", "archive", cluster["cluster_id"]).code == 0
    done = cli("retrieve", "violin sonata")
    assert "No memory was found; 1 cluster is archived (`clag clusters --archived`)." in done.out.splitlines()


def test_answer_prints_what_it_rests_on_and_ends_with_one_where_nothing_bears_on_it(
    make_server: ServerMaker, namespace: str, tmp_path: Path
) -> None:
    server = make_server().start()
    cli = Cli(server, namespace, tmp_path)
    file = tmp_path / "memories.jsonl"
    file.write_text(jsonl(*LINES), encoding="utf-8")
    assert cli("ingest", file, "--ack", "organized").code == 0
    (server.root / "script.json").write_text('{"generate": ["In bay B7.\\u001b[2J"]}', encoding="utf-8")
    done = cli("answer", "Where is the dock?")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("In bay B7.\\x1b[2J\n")
    assert "It was given:" in done.out
    assert "m3" in done.out
    document = cli("answer", "Where is the dock?", "--json", "--how", "in one word").document()
    assert document["answer"].startswith("In bay B7.")
    assert document["done"]["end"] == "ANSWER_END_COMPLETE"
    assert "m3" in document["done"]["memory_ids"]
    refused = cli("answer", "Who composed the violin sonata?")
    assert (refused.code, refused.out.strip()) == (1, "")
    assert "No memory that was found bears on the question" in refused.err
    (server.root / "script.json").write_text('{"generate": [" "]}', encoding="utf-8")
    silent = cli("answer", "Where is the dock?")
    assert silent.code == 1
    assert "The language model wrote nothing." in silent.err
    (server.root / "script.json").write_text("{}", encoding="utf-8")
    small = cli("answer", "Where is the dock?", "--context-tokens", "1")
    assert small.code == 2
    assert "too small for any of the memories" in small.err


def test_a_retrieval_shows_clusters_memories_context_and_search_space(stored: Cli) -> None:
    done = stored("retrieve", "Where is the dock?", "--context-tokens", "100")
    assert done.code == 0
    assert "selected" in done.out
    assert "m3" in done.out
    assert "Context (" in done.out
    assert "Search space: 3 -> " in done.out
    assert "Time: " in done.out
    answer = stored("retrieve", "Where is the dock?", "--json", "-k", "1").document()
    assert [hit["memory"]["memory_id"] for hit in answer["memories"]["hits"]] == ["m3"]
    assert answer["clusters"]["candidates"][0]["selected"] is True
    assert answer["done"]["search_space"]["memories_total"] == 3
    assert "context" not in answer


def test_clusters_and_memories_are_listed_and_shown_one_by_one(stored: Cli) -> None:
    clusters = stored("clusters", "--json").lines()
    assert sum(cluster["memory_count"] for cluster in clusters) == 3
    cluster = stored("cluster", clusters[0]["cluster_id"], "--json").document()
    assert cluster["cluster_id"] == clusters[0]["cluster_id"]
    assert {one["cluster_id"] for one in cluster["representatives"]} <= {cluster["cluster_id"]}
    assert clusters[0]["cluster_id"] in stored("clusters").out
    assert [one["memory_id"] for one in stored("memories", "--json", "--speaker", "Anna").lines()] == ["m1", "m3"]
    assert [one["memory_id"] for one in stored("memories", "--json", "--session", "s2").lines()] == ["m3"]
    assert [one["memory_id"] for one in stored("memories", "--json", "--tag", "dock", "--limit", "1").lines()] == [
        "m1"
    ]
    shown = stored("memory", "m1").out
    assert "The dock is in bay B3." in shown
    assert "superseded by" in shown
    assert "Routed by " in shown


def test_what_does_not_exist_is_exit_code_1_and_what_cannot_be_asked_is_2(stored: Cli) -> None:
    assert stored("memory", "nobody").code == 1
    assert '"nobody" was not found' in stored("memory", "nobody").error()
    wrong = clag("memories", "--socket", stored.server.socket, "--namespace", "Not A Name", home=stored.home)
    assert wrong.code == 2
    assert "--namespace: must be 1 to 63 of a-z" in wrong.error()
    for command in (("cluster", "c1"), ("memory", "m1"), ("clusters",)):
        elsewhere = clag(*command, "--socket", stored.server.socket, "-n", "nons", home=stored.home)
        assert (elsewhere.code, elsewhere.error()) == (1, 'clag: namespace "nons" was not found')
    garbled = stored("retrieve", os.fsdecode(b"arm \xff stuck"))
    assert garbled.code == 2
    assert "UTF-8" in garbled.error()
    deleted = stored("delete", "m2", "nobody", "--json")
    assert deleted.code == 1
    assert deleted.lines() == [{"memory_id": "m2", "deleted": True}, {"memory_id": "nobody", "deleted": False}]
    assert stored("memory", "m2").code == 1


def test_control_characters_and_markup_in_memories_are_shown_and_not_obeyed(cli: Cli) -> None:
    evil = "\x1b]0;owned\x07 [red]alarm[/red] [link=http://x]y[/link] \u202egnp.exe"
    line = jsonl({"id": "evil", "text": evil, "speaker": "[/]\x1b[2J", "tags": ["[blink]"], "session": "\x9b1m"})
    assert cli("ingest", "-", "--ack", "organized", stdin=line).code == 0
    (cluster,) = cli("clusters", "--json").lines()
    for arguments in (
        ("memory", "evil"),
        ("memories",),
        ("retrieve", "alarm", "--context-tokens", "100"),
        ("clusters",),
        ("cluster", cluster["cluster_id"]),
    ):
        done = cli(*arguments)
        assert done.code == 0
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(done.out)
        assert arguments[0] == "clusters" or "[red]alarm[/red]" in done.out
    (memory,) = cli("memories", "--json").lines()
    assert (memory["text"], memory["speaker"]) == (evil, "[/]\x1b[2J")


def test_status_tells_health_models_and_each_namespace(stored: Cli) -> None:
    done = clag("status", "--socket", stored.server.socket, "--json", home=stored.home)
    report = done.document()
    assert (done.code, report["health"]) == (0, "SERVING")
    assert report["server"]["embedder"]["state"] == "MODEL_STATE_READY"
    (mine,) = [one for one in report["namespaces"] if one["namespace"] == stored.namespace]
    assert (mine["memories"]["total"], mine["memories"]["evolved"]) == (3, 3)
    assert stored.namespace in clag("status", "--socket", stored.server.socket, home=stored.home).out


def test_a_second_server_on_the_same_data_says_who_has_it_and_exits_with_3(
    shared_server: ServerProcess, tmp_path: Path
) -> None:
    script = tmp_path / "script.json"
    script.write_text("{}", encoding="utf-8")
    done = clag(
        "serve",
        "--data-dir",
        shared_server.data_dir,
        "--socket",
        tmp_path / "s",
        "--set",
        "models.backend=scripted",
        "--set",
        f"models.script={script}",
        home=tmp_path,
    )
    assert done.code == 3
    last = json.loads(done.err.splitlines()[-1])  # no terminal: the log is JSON, and the refusal its last line
    assert last["event"] == "cannot start"
    assert f"process {shared_server.pid}" in last["reason"]


def test_a_reader_that_has_enough_does_not_make_an_error(stored: Cli) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [*COMMAND, "memories", "--json", *stored.flags()]
    done = subprocess.run(
        command, env=environment(stored.home), stdout=write, stderr=subprocess.PIPE, timeout=TIMEOUT_S, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")
