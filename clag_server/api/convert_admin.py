"""Namespaces and the server itself, from domain to protobuf."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from clag.v1 import admin_service_pb2 as pb

import clag_server
from clag_server.api import limits
from clag_server.api.convert_memory import etag
from clag_server.api.convert_namespace import settings_to
from clag_server.api.convert_probe import probe_to
from clag_server.api.convert_values import duration, time_to
from clag_server.api.facts import ModelFacts, ServerFacts
from clag_server.catalog.api import Namespace
from clag_server.contract.pool import PACKAGE
from clag_server.models.api import EngineState, EngineStatus

__all__ = ["namespace_to", "server_info_to"]

_MODEL_STATES: Mapping[EngineState, pb.ModelState.ValueType] = {
    EngineState.LOADING: pb.ModelState.MODEL_STATE_LOADING,
    EngineState.READY: pb.ModelState.MODEL_STATE_READY,
    EngineState.DEGRADED: pb.ModelState.MODEL_STATE_UNAVAILABLE,
    EngineState.ABSENT: pb.ModelState.MODEL_STATE_UNAVAILABLE,
}


def namespace_to(namespace: Namespace) -> pb.Namespace:
    """The message of a namespace."""
    return pb.Namespace(
        namespace=namespace.name,
        embedding_model=namespace.embedder.name,
        embedding_dimension=namespace.embedder.dim,
        settings=settings_to(namespace.settings),
        create_time=time_to(namespace.create_time_ns),
        update_time=time_to(namespace.update_time_ns or namespace.create_time_ns),
        deleting=namespace.deleting,
        etag=etag(namespace.revision),
    )


def server_info_to(facts: ServerFacts, *, unimplemented: Sequence[str]) -> pb.GetServerInfoResponse:
    """Version, limits and models of the server."""
    probe = facts.probe()
    return pb.GetServerInfoResponse(
        version=clag_server.__version__,
        contract=PACKAGE,
        contract_hash=_contract_hash(),
        capabilities=facts.capabilities,
        unimplemented=unimplemented,
        limits=pb.Limits(
            max_message_bytes=limits.MAX_MESSAGE_BYTES,
            max_batch_items=facts.ingest.max_batch_items,
            max_batch_bytes=facts.ingest.max_batch_bytes,
            max_text_bytes=limits.MAX_TEXT_BYTES,
            window_items=facts.ingest.window_items,
            max_memories=limits.MAX_MEMORIES,
            max_page_size=limits.MAX_PAGE_SIZE,
            max_filter_depth=limits.MAX_FILTER_DEPTH,
            max_filter_nodes=limits.MAX_FILTER_NODES,
            max_unary_time=duration(facts.unary_deadline_s),
        ),
        embedder=_model(facts.embedder()),
        slm=_model(facts.slm()),
        probe=probe_to(probe) if probe is not None else None,
        start_time=time_to(facts.start_time_ns),
    )


def _model(model: ModelFacts) -> pb.ModelInfo:
    return pb.ModelInfo(
        name=model.status.model,
        sha256=model.fingerprint,
        state=_MODEL_STATES[model.status.state] if model.configured else pb.ModelState.MODEL_STATE_DISABLED,
        detail=model.status.reason,
        dimension=model.dim,
        device=model.status.device,
        work=_work(model.status),
    )


def _work(status: EngineStatus) -> pb.ModelWork:
    done = status.metrics
    return pb.ModelWork(
        calls=done.calls,
        failures=done.failures,
        waiting=status.queue_depth,
        wait_p50=duration(done.wait_p50_s),
        wait_p99=duration(done.wait_p99_s),
        batch_mean=done.batch_mean,
        tokens_in=done.tokens_in,
        tokens_out=done.tokens_out,
        tokens_per_second=done.tokens_per_s,
        prefix_hits=done.prefix_hits,
        prefix_misses=done.prefix_misses,
        restarts=status.restarts,
    )


@cache
def _contract_hash() -> str:
    return hashlib.sha256(files("clag_server.contract").joinpath("clag.v1.binpb").read_bytes()).hexdigest()
