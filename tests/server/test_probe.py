"""The competence probe over the socket: it runs by itself once a model, is kept, watched, and asked for again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from clag.v1 import admin_service_pb2 as pb

from tests.support.process import ServerProcess, Stubs
from tests.support.status import read

SKILLS = (
    pb.PROBE_SKILL_ROUTING,
    pb.PROBE_SKILL_SELECTION,
    pb.PROBE_SKILL_ANNOTATION,
    pb.PROBE_SKILL_EVOLUTION,
)


def info(stubs: Stubs) -> pb.GetServerInfoResponse:
    return stubs.admin.GetServerInfo(pb.GetServerInfoRequest(), timeout=20)


def begin(stubs: Stubs) -> pb.Operation:
    return stubs.admin.RunProbe(pb.RunProbeRequest(), timeout=20).operation


def watched(stubs: Stubs, operation: pb.Operation) -> list[pb.Operation]:
    request = pb.WatchOperationRequest(operation_id=operation.operation_id)
    return [response.operation for response in stubs.admin.WatchOperation(request, timeout=60)]


def probes(stubs: Stubs) -> list[pb.Operation]:
    found = stubs.admin.ListOperations(pb.ListOperationsRequest(), timeout=20).operations
    return [one for one in found if one.kind == pb.OPERATION_KIND_PROBE]


def write_script(root: Path, **script: object) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / "script.json").write_text(json.dumps(script), encoding="utf-8")


@pytest.fixture(scope="module")
def probing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("probing")
    write_script(root, choose="first", generate=["nothing of use"])
    with ServerProcess(root, {"organize.probe_auto": "true"}) as server:
        yield server.start()


def test_a_server_probes_its_model_by_itself_and_says_what_it_may_do(probing: ServerProcess) -> None:
    stubs = probing.connect()
    begun = probes(stubs)[-1]
    end = watched(stubs, begun)[-1]
    assert end.state == pb.OPERATION_STATE_SUCCEEDED
    assert end.namespace == ""
    told = info(stubs).probe
    assert told == end.probe
    assert told.model == "scripted-slm"
    assert [one.skill for one in told.skills] == list(SKILLS)
    routing, selection, annotation, evolution = told.skills
    assert routing.questions + selection.questions >= 100
    # This model always names the first option and writes prose.
    assert routing.position_bias == pytest.approx(1)
    assert routing.accuracy == pytest.approx(0.2)
    assert routing.accuracy_low < routing.accuracy < routing.accuracy_high
    assert annotation.valid_rate == evolution.valid_rate == 0
    assert [one.weight for one in told.skills] == [0, 0, 0, 0]


def test_a_probe_can_be_asked_for_again_and_its_outcome_replaces_the_last(probing: ServerProcess) -> None:
    stubs = probing.connect()
    watched(stubs, probes(stubs)[-1])
    before = info(stubs).probe.time.ToNanoseconds()
    begun = begin(stubs)
    assert begun.kind == pb.OPERATION_KIND_PROBE
    states = watched(stubs, begun)
    assert states[-1].state == pb.OPERATION_STATE_SUCCEEDED
    assert states[-1].probe.time.ToNanoseconds() > before
    assert info(stubs).probe == states[-1].probe


def test_asking_while_a_probe_runs_gives_that_probe_and_it_can_be_cancelled(tmp_path: Path) -> None:
    write_script(tmp_path, choose="hang")
    with ServerProcess(tmp_path, {"organize.probe_auto": "true"}) as server:
        stubs = server.start().connect()
        (running,) = probes(stubs)
        assert begin(stubs).operation_id == running.operation_id
        assert not info(stubs).HasField("probe")
        write_script(tmp_path, choose="unavailable")
        request = pb.CancelOperationRequest(operation_id=running.operation_id)
        stubs.admin.CancelOperation(request, timeout=20)
        assert watched(stubs, running)[-1].state == pb.OPERATION_STATE_CANCELLED


def test_an_outcome_outlives_a_restart_and_the_same_model_is_not_probed_again(tmp_path: Path) -> None:
    settings = {"organize.probe_auto": "true"}
    with ServerProcess(tmp_path, settings) as server:
        stubs = server.start().connect()
        watched(stubs, probes(stubs)[-1])
        first = info(stubs).probe
    with ServerProcess(tmp_path, settings) as server:
        stubs = server.start().connect()
        assert info(stubs).probe == first
        assert len(probes(stubs)) == 1


def test_a_damaged_outcome_is_not_believed_and_the_model_is_probed_again(tmp_path: Path) -> None:
    settings = {"organize.probe_auto": "true"}
    with ServerProcess(tmp_path, settings) as server:
        stubs = server.start().connect()
        watched(stubs, probes(stubs)[-1])
        (kept,) = (server.data_dir / "probe").glob("*.json")
    kept.write_text(kept.read_text("utf-8").replace('"accuracy": ', '"accuracy": 7'), "utf-8")
    with ServerProcess(tmp_path, settings) as server:
        stubs = server.start().connect()
        again = probes(stubs)
        assert len(again) == 2
        end = watched(stubs, again[0])[-1]
        assert info(stubs).probe == end.probe
        assert "damaged" in server.log


def test_a_probe_that_waits_for_an_absent_model_does_not_keep_the_server_from_serving(tmp_path: Path) -> None:
    write_script(tmp_path, choose="unavailable")
    with ServerProcess(tmp_path, {"organize.probe_auto": "true"}) as server:
        stubs = server.start().connect()
        (waiting,) = probes(stubs)
        assert waiting.state in (pb.OPERATION_STATE_PENDING, pb.OPERATION_STATE_RUNNING)
        write_script(tmp_path, choose="overlap")
        assert watched(stubs, waiting)[-1].state == pb.OPERATION_STATE_SUCCEEDED


@pytest.mark.parametrize("trust", ["full", "none"])
def test_where_the_settings_say_how_far_a_model_is_trusted_no_probe_runs_by_itself(
    tmp_path: Path, trust: str
) -> None:
    with ServerProcess(tmp_path, {"organize.probe_auto": "true", "organize.trust": trust}) as server:
        stubs = server.start().connect()
        assert probes(stubs) == []
        assert watched(stubs, begin(stubs))[-1].state == pb.OPERATION_STATE_SUCCEEDED


def test_without_a_language_model_there_is_nothing_to_probe(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, {"organize.probe_auto": "true", "models.slm": ""}) as server:
        stubs = server.start().connect()
        assert probes(stubs) == []
        with pytest.raises(grpc.RpcError) as raised:
            begin(stubs)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert read(raised.value).reason == "MODEL_UNAVAILABLE"
