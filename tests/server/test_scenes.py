"""A client says that the scene changed, and the session's run of memories ends there."""

from __future__ import annotations

import grpc
import pytest
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2

from tests.support.ingest import IngestStream, Level
from tests.support.process import Stubs
from tests.support.reads import get
from tests.support.status import refused

SIGNALS = [pb.SCENE_SIGNAL_SCENE_SWITCH, pb.SCENE_SIGNAL_SESSION_END]


def memory(memory_id: str, session_id: str) -> types_pb2.MemoryInput:
    text = f"the charging dock blinks {memory_id[-1]}"
    return types_pb2.MemoryInput(memory_id=memory_id, session_id=session_id, text=text)


def signal(
    stubs: Stubs, namespace: str, session_id: str, kind: pb.SceneSignal.ValueType = pb.SCENE_SIGNAL_SCENE_SWITCH
) -> pb.SignalSceneResponse:
    request = pb.SignalSceneRequest(namespace=namespace, session_id=session_id, signal=kind, scene="kitchen")
    return stubs.memory.SignalScene(request, timeout=20)


@pytest.mark.parametrize("kind", SIGNALS)
def test_what_comes_after_a_signal_is_another_episode_also_when_it_is_alike(
    stubs: Stubs, namespace: str, kind: pb.SceneSignal.ValueType
) -> None:
    with IngestStream(stubs, namespace, level=Level.ACK_LEVEL_DURABLE) as stream:
        stream.batch([memory("a-1", "monday"), memory("b-1", "tuesday")])
        stream.acked()
        closed = signal(stubs, namespace, "monday", kind)
        stream.batch([memory("a-2", "monday"), memory("b-2", "tuesday")])
        stream.finish()
    signal(stubs, namespace, "none")  # whatever was stored before is placed when this returns
    episodes = {name: get(stubs, namespace, name).episode_id for name in ("a-1", "a-2", "b-1", "b-2")}
    assert closed.closed_episode_id == episodes["a-1"] != episodes["a-2"]
    assert episodes["b-1"] == episodes["b-2"]


def test_a_session_without_an_open_episode_is_no_error(stubs: Stubs, namespace: str) -> None:
    with IngestStream(stubs, namespace) as stream:
        stream.batch([memory("a-1", "monday")])
        stream.finish()
    signal(stubs, namespace, "monday")
    again = signal(stubs, namespace, "monday")
    assert again.closed_episode_id == ""
    assert again.HasField("revision")


def test_a_signal_needs_a_namespace_that_exists_and_a_kind(stubs: Stubs, namespace: str) -> None:
    with refused(grpc.StatusCode.NOT_FOUND, "NOT_FOUND"):
        signal(stubs, namespace, "monday")
    with refused(grpc.StatusCode.INVALID_ARGUMENT) as failures:
        signal(stubs, namespace, "monday", pb.SCENE_SIGNAL_UNSPECIFIED)
    assert failures[0].fields == ("signal",)
