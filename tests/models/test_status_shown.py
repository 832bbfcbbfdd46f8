"""What a model did reaches whoever asks the server, and the person at the terminal."""

from __future__ import annotations

from clag.v1 import admin_service_pb2 as pb

from clag_server.api.convert_admin import server_info_to
from clag_server.api.facts import ModelFacts, ServerFacts
from clag_server.cli.status import _model
from clag_server.memory.config import IngestConfig
from clag_server.models.status import EngineMetrics, EngineState, EngineStatus

METRICS = EngineMetrics(
    calls=1200,
    failures={"timeout": 2, "unusable_cut": 1},
    wait_p50_s=0.01,
    wait_p99_s=0.25,
    batch_mean=14.5,
    tokens_in=9000,
    tokens_out=800,
    tokens_per_s=120.0,
    prefix_hits=75,
    prefix_misses=25,
)


def info(status: EngineStatus) -> pb.ModelInfo:
    def facts() -> ModelFacts:
        return ModelFacts(status, dim=8)

    server = ServerFacts(
        ingest=IngestConfig(), unary_deadline_s=1.0, start_time_ns=0, capabilities=(), embedder=facts, slm=facts
    )
    return server_info_to(server, unimplemented=()).slm


def test_the_work_of_a_model_is_told_and_shown() -> None:
    told = info(EngineStatus(EngineState.READY, "tiny", device="cpu", restarts=3, queue_depth=7, metrics=METRICS))
    assert (told.work.calls, told.work.waiting, told.work.restarts) == (1200, 7, 3)
    assert dict(told.work.failures) == {"timeout": 2, "unusable_cut": 1}
    assert told.work.wait_p99.ToMilliseconds() == 250
    line = _model(told)
    assert line == (
        "tiny, ready on cpu; 1,200 calls (2 timeout, 1 unusable_cut); 7 waiting, wait p99 250 ms; "
        "14.5 a batch, 120 tokens/s; 75% of beginnings kept"
    )


def test_a_model_that_loads_says_what_is_done() -> None:
    assert _model(info(EngineStatus(EngineState.LOADING, "tiny", "reading the weights"))) == (
        "tiny, loading reading the weights"
    )
