"""The composition root: builds the object graph from the settings, serves until it is asked to stop, and drains.

Order up: locks, credentials, addresses (what can refuse a start comes first), models, stores, the door opens.
Order down: health says NOT_SERVING, new calls are turned away, open streams are told and acknowledged, then the
listeners, the pipelines, the stores and the models end.
"""

from __future__ import annotations

import asyncio
import sys
import time

import grpc
import structlog
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

import clag_server
from clag_server.api.admin import AdminServicer
from clag_server.api.cluster import ClusterServicer
from clag_server.api.facts import ModelFacts, ServerFacts
from clag_server.api.health import OVERALL, HealthServicer
from clag_server.api.interceptors import CallCounters, DrainGate, standard_interceptors
from clag_server.api.limits import MAX_MESSAGE_BYTES
from clag_server.api.memory import MemoryServicer
from clag_server.api.readiness import Readiness
from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.contract.codec import register
from clag_server.contract.pool import PACKAGE
from clag_server.listen import Credentials, Listener, bind, credentials_of, locked
from clag_server.memory.answering import Answering
from clag_server.memory.feed_config import ExportConfig, WatchConfig
from clag_server.memory.feeds import Feeds
from clag_server.memory.system import MemorySystem, SystemCatalog
from clag_server.models.api import EngineState, EngineStatus
from clag_server.models.factory import ModelHost, build_models
from clag_server.models.remote_config import RemoteConfigError
from clag_server.models.scripted import ScriptError
from clag_server.models.specs import StoreError
from clag_server.ops.directories import DirectorySize
from clag_server.ops.errors import ModelsMissing, StartRefused, UnusableFile
from clag_server.ops.garbage import collected_when_open, settle
from clag_server.ops.logging import configure_logging
from clag_server.ops.signals import StopSignals, stop_signals
from clag_server.ops.tokens import read_token
from clag_server.settings import (
    IndexSettings,
    LogFormat,
    LogSettings,
    ModelSettings,
    Settings,
    SettingsError,
    load,
    models_config,
)
from clag_server.types.errors import StorageFailed
from clag_server.vectors.address import MilvusServer, milvus_server
from clag_server.vectors.index import MilvusIndex
from clag_server.vectors.settings import IndexSettings as IndexTuning

__all__ = ["EXIT_SETTINGS", "EXIT_STORAGE", "main", "models_config", "run", "serve"]

_log = structlog.get_logger("clag.server")

EXIT_SETTINGS = 2
EXIT_STORAGE = 5

MEMORY_SERVICE = f"{PACKAGE}.MemoryService"
CLUSTER_SERVICE = f"{PACKAGE}.ClusterService"
ADMIN_SERVICE = f"{PACKAGE}.AdminService"

_STOP_GRACE_S = 1.0
"""Time that the listeners give calls which did not end while draining."""

_MODEL_POLL_S = 0.05
"""How often the start looks whether the embedder is loaded; a load takes seconds."""

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Two servers on one port would share its connections at random.
    ("grpc.so_reuseport", 0),
    # Notice dead peers within a minute and a half, and let clients ping as often as every ten seconds.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


def main() -> int:
    """Serve with settings from file and environment; returns the exit code."""
    try:
        settings = load()
    except SettingsError as error:
        configure_logging(level="info", json=None)
        for line in error.lines:
            _log.error("wrong setting", reason=line)
        return EXIT_SETTINGS
    return serve(settings)


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code (0 after a drain)."""
    return asyncio.run(run(settings))


async def run(settings: Settings) -> int:
    """Serve on the running event loop; returns the exit code.

    0: drained after a signal. 2: a file or directory named in the settings cannot be used. 3: another server or
    program holds the data directory, socket or port. 4: a model is missing. 5: the catalog cannot be opened.
    """
    _configure_logging(settings.log)
    try:
        with locked(settings), collected_when_open():
            return await _Server(settings, credentials_of(settings)).run()
    except StartRefused as refused:
        _log.error("cannot start", reason=str(refused))
        return refused.exit_code
    except StorageFailed as failed:
        _log.error("cannot start", reason=str(failed))
        return EXIT_STORAGE


class _Server:
    """The object graph of one server."""

    def __init__(self, settings: Settings, credentials: Credentials) -> None:
        self._settings = settings
        self._credentials = credentials
        self._gate = DrainGate()
        self._health = HealthServicer((MEMORY_SERVICE, CLUSTER_SERVICE, ADMIN_SERVICE))
        self._models = _built_models(settings.models)
        self._catalog = SqliteCatalog(settings.storage.data_dir / "catalog.db")
        self._system = _memory_system(settings, self._catalog, self._models)
        self._feeds = _feeds(settings, self._catalog, self._system)
        self._facts = ServerFacts(
            ingest=settings.ingest,
            unary_deadline_s=settings.server.unary_deadline_s,
            start_time_ns=time.time_ns(),
            capabilities=(
                "milvus-server" if settings.index.uri else "milvus-lite",
                f"slm-trust-{settings.organize.trust}",
            ),
            embedder=self._embedder_facts,
            slm=self._slm_facts,
            probe=lambda: self._system.competence.report,
        )
        self._grpc = self._build_grpc()

    async def run(self) -> int:
        """Listen, open, wait for a signal, drain."""
        listener = bind(self._grpc, self._settings.server, self._credentials)
        with stop_signals() as signals:
            await self._grpc.start()
            opening = asyncio.create_task(self._open_and_watch(listener))
            asked = asyncio.create_task(signals.asked.wait())
            try:
                await asyncio.wait((opening, asked), return_when=asyncio.FIRST_COMPLETED)
                if opening.done():
                    opening.result()
                    await asked
            finally:
                opening.cancel()
                asked.cancel()
                await asyncio.gather(opening, asked, return_exceptions=True)
                await self._drain(signals)
        return 0

    async def _open_and_watch(self, listener: Listener) -> None:
        """Open, then keep health true for as long as the server runs."""
        await self._open(listener)
        await Readiness(
            self._health,
            (MEMORY_SERVICE, OVERALL),
            catalog=self._catalog,
            embedder=lambda: self._models.status().embedder,
        ).run()

    async def _open(self, listener: Listener) -> None:
        """Start models and stores, then open the door; health tells each step."""
        await self._models.start()
        await self._system.start()
        await self._feeds.start()
        self._gate.open()
        settle()
        self._health.set(CLUSTER_SERVICE, serving=True)
        self._health.set(ADMIN_SERVICE, serving=True)
        _log.info("stores are open", data_dir=str(self._settings.storage.data_dir))
        embedder = await self._loaded_embedder()
        self._health.set(MEMORY_SERVICE, serving=True)
        self._health.set(OVERALL, serving=True)
        token_file = self._credentials.token_file
        _log.info(
            "ready",
            listening=", ".join(listener.addresses),
            data_dir=str(self._settings.storage.data_dir),
            embedder=embedder.model,
            slm=self._slm_facts().status.model or "none",
            version=clag_server.__version__,
            **({} if token_file is None else {"token_file": str(token_file)}),
        )

    async def _drain(self, signals: StopSignals) -> None:
        """End in order; a second signal ends the wait for open calls."""
        self._health.shut_down()
        self._gate.drain()
        _log.info("draining", longest_s=self._settings.server.drain_s)
        idle = asyncio.create_task(self._gate.idle())
        urged = asyncio.create_task(signals.urged.wait())
        try:
            await asyncio.wait(
                (idle, urged), timeout=self._settings.server.drain_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            idle.cancel()
            urged.cancel()
        await self._grpc.stop(_STOP_GRACE_S)
        await self._feeds.stop()
        await self._system.stop()
        await self._models.stop()
        _log.info("stopped")

    def _build_grpc(self) -> grpc.aio.Server:
        interceptors = standard_interceptors(
            token=self._credentials.token,
            unary_deadline_s=self._settings.server.unary_deadline_s,
            gate=self._gate,
            counters=CallCounters(),
        )
        server = grpc.aio.server(interceptors=interceptors, options=_OPTIONS)
        answering = Answering(self._system, self._system.registry, self._models, self._settings.retrieve)
        memory = MemoryServicer(self._system, self._facts, self._gate, self._feeds, answering)
        register(server, memory, "MemoryService")
        register(server, ClusterServicer(self._system, self._system.cluster_edits), "ClusterService")
        register(server, AdminServicer(self._system, self._facts, self._gate, self._feeds), "AdminService")
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (MEMORY_SERVICE, CLUSTER_SERVICE, ADMIN_SERVICE, "grpc.health.v1.Health", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        return server

    async def _loaded_embedder(self) -> EngineStatus:
        """Wait until the embedder answers; what it is then. Raises ModelsMissing when it never will."""
        while (status := self._models.status().embedder).state is not EngineState.READY:
            if status.state is EngineState.ABSENT:
                raise ModelsMissing(f"the embedder {status.model} cannot be used: {status.reason}")
            await asyncio.sleep(_MODEL_POLL_S)
        return status

    def _embedder_facts(self) -> ModelFacts:
        embedder = self._models.embedder
        return ModelFacts(self._models.status().embedder, embedder.fingerprint, embedder.dim)

    def _slm_facts(self) -> ModelFacts:
        return ModelFacts(self._models.status().slm, configured=bool(self._settings.models.slm))


def _configure_logging(settings: LogSettings) -> None:
    json = {LogFormat.AUTO: None, LogFormat.HUMAN: False, LogFormat.JSON: True}[settings.format]
    configure_logging(level=settings.level, json=json)


def _built_models(settings: ModelSettings) -> ModelHost:
    """Build the models; raises ModelsMissing with one line that says what to do (case E4)."""
    try:
        return build_models(models_config(settings))
    except RemoteConfigError as error:
        raise UnusableFile(str(error)) from error
    except (StoreError, ScriptError) as error:
        raise ModelsMissing(str(error)) from error


def _memory_system(settings: Settings, catalog: SystemCatalog, models: ModelHost) -> MemorySystem:
    data_dir = settings.storage.data_dir
    index = MilvusIndex(
        catalog,
        data_dir,
        server=_milvus_server(settings.index),
        settings=IndexTuning(verify=settings.index.verify == "open"),
    )
    return MemorySystem(
        catalog=catalog,
        index=index,
        models=models,
        ingest=settings.ingest,
        organize=settings.organize,
        retrieve=settings.retrieve,
        data_dir=data_dir,
        slm_identity=models.slm_identity,
        bytes_on_disk=DirectorySize(data_dir),
    )


def _milvus_server(settings: IndexSettings) -> MilvusServer | None:
    """Return the Milvus server that is set, None for the embedded one. Raises UnusableFile for its token file."""
    if not settings.uri:
        return None
    token_file = settings.token_file
    token = "" if token_file is None else read_token(token_file, setting="index.token_file", min_chars=1)
    return milvus_server(settings.uri, token, settings.ca_file)


def _feeds(settings: Settings, catalog: SqliteCatalog, system: MemorySystem) -> Feeds:
    storage = settings.storage
    return Feeds(
        catalog=catalog,
        registry=system.registry,
        hub=system.hub,
        directory=storage.data_dir / "exports",
        open_catalog=lambda path: SqliteCatalog(path, readers=1),
        ingest=settings.ingest,
        watch=WatchConfig(
            checkpoint_s=storage.watch_checkpoint_s,
            changes_keep=storage.changes_keep,
            changes_keep_days=storage.changes_keep_days,
        ),
        export=ExportConfig(
            snapshot_keep_s=storage.export_snapshot_keep_s, snapshots_max=storage.export_snapshots_max
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
