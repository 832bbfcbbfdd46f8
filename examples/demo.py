"""The demo: two weeks of a warehouse robot go into a real server, then 20 questions are asked.

    make demo    (or: python examples/demo.py)

It starts `clag serve` on a socket in a temporary directory with the default models (fetched once), streams
`warehouse_robot/stream.jsonl` in, shows the clusters that came about, and asks the questions of `questions.jsonl`.
The last line sums up; the exit code is 0 unless something failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import ClagError, Client
from grpc_health.v1 import health_pb2, health_pb2_grpc

from clag_server.cli.lines import parse_line, read_lines
from clag_server.cli.output import console, table
from clag_server.cli.safe import shorten

EXAMPLE = Path(__file__).parent / "warehouse_robot"
NAMESPACE = "kestrel"
CLAG = (sys.executable, "-m", "clag_server")

TOP = 5
PICKED_SHOWN = 3
LEAST_HITS = 10
"""Fewer right answers than this mean that something is broken, not that the questions are hard."""

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0


class DemoFailed(Exception):
    """Something did not work; the message says what."""


@dataclass(frozen=True, slots=True)
class Question:
    """One line of questions.jsonl: any of the evidence memories answers it, at least in part."""

    id: str
    text: str
    evidence: frozenset[str]


@dataclass(frozen=True, slots=True)
class Result:
    """How much of a question's evidence is in the top 5, and the share of all memories that was looked at."""

    found: int
    share: float


def main() -> int:
    """Run the demo; returns the exit code."""
    started = time.monotonic()
    pulled = subprocess.run((*CLAG, "models", "pull"), stdout=subprocess.DEVNULL, check=False)
    if pulled.returncode != 0:
        return pulled.returncode  # the command has said why
    with tempfile.TemporaryDirectory(prefix="clag-demo-") as directory:
        log = Path(directory) / "server.log"
        try:
            with running_server(Path(directory), log) as socket, Client(f"unix:{socket}", timeout_s=60.0) as client:
                print(f"The server is ready after {time.monotonic() - started:.1f} s.")
                closing = demonstrate(client)
        except (DemoFailed, ClagError) as error:
            end = log.read_text("utf-8")[-3000:] if log.exists() else ""
            sys.stderr.write(f"demo: {error}\nThe end of the server's log:\n{end}\n")
            return 1
    print(closing)
    return 0


def demonstrate(client: Client) -> str:
    """Ingest, look, ask; returns the closing line."""
    memories = ingest(client)
    clusters = show_clusters(client)
    lines = (EXAMPLE / "questions.jsonl").read_text("utf-8").splitlines()
    questions = [
        Question(line["id"], line["question"], frozenset(line["evidence"])) for line in map(json.loads, lines)
    ]
    results = [ask(client, question) for question in questions]
    show_routing(client)
    hits = sum(result.found > 0 for result in results)
    share = sum(result.share for result in results) / len(results)
    if hits < LEAST_HITS:
        raise DemoFailed(f"only {hits} of {len(results)} questions found their evidence")
    return f"demo: {memories} memories, {clusters} clusters, hit@5 {hits}/{len(results)}, search space {share:.0%}"


def ingest(client: Client) -> int:
    """Stream the example in until every memory is organized; returns how many memories the server then has.

    Raises:
        DemoFailed: One was rejected or lost.
    """
    with (EXAMPLE / "stream.jsonl").open("rb") as file:
        items = [parse_line(line) for line in read_lines(file)]
    began = time.monotonic()
    with client.ingest(NAMESPACE, items, ack_level=pb.ACK_LEVEL_ORGANIZED) as ingestion:
        for outcome in ingestion:
            if outcome.error is not None:
                raise DemoFailed(f"item {outcome.seq}: {outcome.error.message}")
        ingestion.wait()
    took = time.monotonic() - began
    there = sum(1 for _ in client.list_memories(NAMESPACE, page_size=1000))
    if there != len(items):
        raise DemoFailed(f"{len(items)} memories went in, {there} are there")
    print(f"{there} memories are stored, embedded, routed and evolved after {took:.1f} s ({there / took:.0f}/s).")
    return there


def show_clusters(client: Client) -> int:
    """Print the clusters, the largest first; returns how many there are."""
    clusters = sorted(client.list_clusters(NAMESPACE), key=lambda cluster: -cluster.memory_count)
    shown = table("cluster", "title", "memories#", "episodes#", "tags")
    for one in clusters:
        tags = shorten(", ".join(one.tags), 50)
        shown.add_row(one.cluster_id, shorten(one.title, 40), str(one.memory_count), str(one.episode_count), tags)
    console().print(shown)
    return len(clusters)


def show_routing(client: Client) -> None:
    """Print who decided where the episodes are; an SLM that the competence probe does not trust is not asked."""
    routed = {memory.episode_id: memory.routing for memory in client.list_memories(NAMESPACE, page_size=1000)}
    deciders = Counter(routing.decided_by for routing in routed.values())
    untrusted = sum(routing.fallback == types_pb2.FALLBACK_CAUSE_NOT_TRUSTED for routing in routed.values())
    by_slm, alone, deferred = (
        deciders[types_pb2.RoutingDecider.Value(f"ROUTING_DECIDER_{who}")] for who in ("SLM", "VECTOR", "DEFERRED")
    )
    print(
        f"\nRouting of {len(routed)} episodes: {by_slm} by the SLM and the vectors, {alone} by the vectors alone "
        f"({untrusted} of them because the SLM is not trusted with it), {deferred} await the SLM.\n"
    )


def ask(client: Client, question: Question) -> Result:
    """Ask a question and print what was picked and found; the memories that answer it are marked with *."""
    answer = client.get_context(NAMESPACE, question.text, max_memories=TOP)
    hits = answer.memories.hits
    found = sum(hit.memory.memory_id in question.evidence for hit in hits)
    picked = [
        f"{one.cluster_id} {shorten(one.title, 30)} ({one.memories_picked} of {one.memory_count})"
        for one in answer.clusters.candidates
        if one.selected
    ]
    more = f" and {len(picked) - PICKED_SHOWN} more" if len(picked) > PICKED_SHOWN else ""
    print(f"\n{question.id} {question.text}")
    print(f"   {'HIT ' if found else 'miss'} {found} of {len(question.evidence)} in the top {TOP}")
    print(f"   picked {', '.join(picked[:PICKED_SHOWN])}{more}")
    for hit in hits:
        mark = "*" if hit.memory.memory_id in question.evidence else " "
        speaker = shorten(hit.memory.speaker, 12)
        print(f"   {mark} {hit.memory.memory_id} {hit.score:.2f} {speaker}: {shorten(hit.memory.text, 80)}")
    space = answer.done.search_space
    return Result(found, space.memories_in_picked_episodes / max(space.memories_total, 1))


@contextmanager
def running_server(directory: Path, log: Path) -> Iterator[Path]:
    """Run `clag serve` while the block runs, and stop it gracefully; yields its socket once it serves.

    Raises:
        DemoFailed: It did not start, or did not end well.
    """
    socket = directory / "clag.sock"
    command = (*CLAG, "serve", "--offline", "--socket", str(socket), "--data-dir", str(directory / "data"))
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            wait_until_serving(socket, process)
            yield socket
            process.terminate()
            if process.wait(STOP_TIMEOUT_S) != 0:
                raise DemoFailed(f"the server ended with {process.returncode}")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def wait_until_serving(socket: Path, process: subprocess.Popen[bytes]) -> None:
    """Follow the standard health service until it says SERVING."""
    deadline = time.monotonic() + START_TIMEOUT_S
    with grpc.insecure_channel(f"unix:{socket}", options=(("grpc.max_reconnect_backoff_ms", 500),)) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise DemoFailed(f"the server ended with {process.returncode} before it was ready")
            try:
                # A short watch at a time, so that a server that dies is noticed.
                for update in health.Watch(health_pb2.HealthCheckRequest(), timeout=2.0, wait_for_ready=True):
                    if update.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except grpc.RpcError:
                continue
    raise DemoFailed(f"the server was not ready within {START_TIMEOUT_S:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
