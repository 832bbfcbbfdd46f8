"""How an answer and a server's trust in its model are told to people."""

from __future__ import annotations

import io

import pytest
from clag.v1 import admin_service_pb2 as admin_pb
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from rich.console import Console

from clag_server.cli.trace import print_trace
from clag_server.cli.trust import probe_line


def told(*hits: pb.MemoryHit) -> str:
    out = io.StringIO()
    print_trace(
        Console(file=out, width=300), pb.GetContextResponse(memories=pb.MemoryHits(hits=hits)), nothing="nothing"
    )
    return out.getvalue()


def hit(memory_id: str, other: str, reason: str) -> pb.MemoryHit:
    conflict = pb.Conflict(memory_id=other, reason=reason, clarifying_question="Which holds now?")
    return pb.MemoryHit(memory=types_pb2.Memory(memory_id=memory_id, text="a note"), conflicts=[conflict])


@pytest.mark.parametrize("reason", ["another number: 7 and 3", "another number: 7 and 3."])
def test_a_conflict_of_two_hits_is_told_once_and_ends_before_its_question(reason: str) -> None:
    shown = told(hit("m7", "m3", reason), hit("m3", "m7", reason))
    assert shown.count("cannot both hold") == 1
    assert "m7 and m3 cannot both hold: another number: 7 and 3. Which holds now?" in shown


def test_conflicts_with_two_others_are_two() -> None:
    assert told(hit("m7", "m3", "one"), hit("m7", "m4", "two")).count("cannot both hold") == 2


@pytest.mark.parametrize(
    ("capabilities", "line"),
    [
        (["milvus-lite", "slm-trust-full"], "not asked for: organize.trust is full"),
        (["slm-trust-none"], "not asked for: organize.trust is none"),
        (["slm-trust-probe"], "not yet"),
        ([], "not yet"),
    ],
)
def test_the_probe_of_a_server_that_needs_none_is_told_as_such(capabilities: list[str], line: str) -> None:
    info = admin_pb.GetServerInfoResponse(
        capabilities=capabilities, slm=admin_pb.ModelInfo(state=admin_pb.MODEL_STATE_READY)
    )
    assert probe_line(info) == line


def test_the_votes_of_the_slm_have_a_column_where_it_chose() -> None:
    candidates = [
        pb.ClusterCandidate(cluster_id="c1", title="Travel", score=0.7, selected=True, slm_vote=1.5),
        pb.ClusterCandidate(cluster_id="c2", title="Food", score=0.9, selected=True),
    ]
    out = io.StringIO()
    shown = pb.GetContextResponse(clusters=pb.ClusterSelection(candidates=candidates))
    print_trace(Console(file=out, width=300), shown, nothing="nothing")
    assert "SLM" in out.getvalue().splitlines()[1]
    assert "+1.50" in out.getvalue()
    assert "SLM" not in told()


def test_the_parts_of_a_score_are_shown_where_they_are_asked_for() -> None:
    one = hit("m1", "m2", "one")
    one.score_parts.add(name="choice", value=0.2)
    out = io.StringIO()
    shown = pb.GetContextResponse(memories=pb.MemoryHits(hits=[one]))
    print_trace(Console(file=out, width=300), shown, nothing="nothing", parts=True)
    assert "choice 0.20" in out.getvalue()
    assert "choice 0.20" not in told(one)
