"""Builds the models of one server from their configuration: the composition root's only door to this folder."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from clag_server.models.absent import AbsentSlm
from clag_server.models.api import Embedder, EngineStatus, SlmEngine, TokenCounter
from clag_server.models.client import WorkerClient
from clag_server.models.config import Backend, ModelsConfig
from clag_server.models.folder import ModelFolder, read_embedder_info, vector_space_fingerprint
from clag_server.models.identity import local_identity, remote_identity
from clag_server.models.scripted import ScriptError, from_file
from clag_server.models.specs import ModelKind
from clag_server.models.store import ModelStore
from clag_server.models.tokens import FileTokenCounter, WordTokenCounter
from clag_server.models.worker_embedder import WorkerEmbedder
from clag_server.models.worker_settings import WorkerSettings
from clag_server.models.worker_slm import WorkerSlm

if TYPE_CHECKING:
    from pathlib import Path

    from clag_server.children import RestartPolicy
    from clag_server.models.remote import RemoteSlm

__all__ = ["ModelHost", "ModelsStatus", "build_models", "build_remote"]


@dataclasses.dataclass(frozen=True, slots=True)
class ModelsStatus:
    """How the server's models stand."""

    embedder: EngineStatus
    slm: EngineStatus


class _WithStatus(Protocol):
    @property
    def status(self) -> EngineStatus: ...


class _StatusEmbedder(Embedder, _WithStatus, Protocol):
    """An embedder that says how it stands."""


class _StatusSlm(SlmEngine, _WithStatus, Protocol):
    """A language model that says how it stands."""


class ModelHost:
    """The models of one server.

    Attributes:
        embedder: Answers from the moment of `start`; calls wait while it loads.
        slm: The same; without a configured model every call raises `ModelUnavailableError`.
        token_counter: Counts as the language model does, in this process, at any time.
        slm_identity: What the language model is, exactly; None without one.
    """

    def __init__(
        self,
        embedder: _StatusEmbedder,
        slm: _StatusSlm,
        token_counter: TokenCounter,
        clients: Sequence[WorkerClient] = (),
        remote: RemoteSlm | None = None,
        *,
        slm_identity: str | None = None,
    ) -> None:
        self._embedder = embedder
        self._slm = slm
        self._clients = tuple(clients)
        self._remote = remote
        self.embedder: Embedder = embedder
        self.slm: SlmEngine = slm
        self.slm_identity = slm_identity
        self.token_counter = token_counter

    async def start(self) -> None:
        """Start the model workers; returns at once, models load in the background."""
        for client in self._clients:
            await client.start()
        if self._remote is not None:
            await self._remote.start()

    async def stop(self) -> None:
        """Stop the model workers; calls in flight fail with `ModelUnavailableError`."""
        ending = [client.stop() for client in self._clients]
        await asyncio.gather(*ending, *([self._remote.stop()] if self._remote is not None else []))

    def status(self) -> ModelsStatus:
        """Return how both models stand now."""
        return ModelsStatus(self._embedder.status, self._slm.status)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the model workers that run."""
        pids = (client.child.pid for client in self._clients)
        return tuple(pid for pid in pids if pid is not None)


def build_models(config: ModelsConfig, *, policy: RestartPolicy | None = None) -> ModelHost:
    """Build the models; loads nothing yet.

    Args:
        config: What to build.
        policy: Delays between the end of a worker and its next start.

    Raises:
        ModelMissingError: A model is not on this machine (case E4): one line with the command that gets it.
        StoreError: A model folder lacks a file or is of an unsupported kind.
        ScriptError: The scripted backend has no script or a bad one.
        RemoteConfigError: The address or the key file of a remote server cannot be used.
    """
    if config.backend is Backend.SCRIPTED:
        if config.script is None:
            raise ScriptError("the scripted backend needs a script file")
        embedder, slm = from_file(config.script)
        return ModelHost(embedder, slm, WordTokenCounter(), slm_identity=slm.name if config.slm else None)
    store = ModelStore(config.cache)
    embedder_folder = store.resolve(config.embedder, ModelKind.EMBEDDER)
    remote = build_remote(config) if config.slm and config.slm_url else None
    slm_folder = store.resolve(config.slm, ModelKind.SLM) if config.slm and remote is None else None
    return _with_worker(config, embedder_folder, slm_folder, remote, policy)


def build_remote(config: ModelsConfig) -> RemoteSlm:
    """Build the language model of a server elsewhere; sends nothing yet.

    Raises:
        RemoteConfigError: The address or the key file cannot be used.
    """
    # The HTTP library takes 0.2 s to import, which only those pay who use it.
    from clag_server.models.remote import RemoteSlm
    from clag_server.models.remote_config import RemoteConfig
    from clag_server.models.remote_link import RemoteLink

    wanted = RemoteConfig(
        config.slm_url, config.slm or "", config.slm_api_key_file, concurrency=config.slm_concurrency
    )
    return RemoteSlm(RemoteLink(wanted))


def _with_worker(
    config: ModelsConfig,
    embedder: ModelFolder,
    slm: ModelFolder | None,
    remote: RemoteSlm | None,
    policy: RestartPolicy | None,
) -> ModelHost:
    info = read_embedder_info(embedder.path, config.limits.embed_tokens)
    clients = _workers(config, embedder.path, slm.path if slm else None, policy)
    worker_embedder = WorkerEmbedder(
        clients,
        name=embedder.name,
        dim=info.dim,
        fingerprint=vector_space_fingerprint(embedder.path, info),
        window_tokens=info.window_tokens,
        windows=config.limits.embed_windows,
    )
    if remote is not None:
        identity = remote_identity(config.slm or "", config.slm_url)
        return ModelHost(worker_embedder, remote, WordTokenCounter(), clients, remote, slm_identity=identity)
    if slm is None:
        return ModelHost(worker_embedder, AbsentSlm(), WordTokenCounter(), clients)
    return ModelHost(
        worker_embedder,
        WorkerSlm(clients, name=slm.name),
        FileTokenCounter(slm.path),
        clients,
        slm_identity=local_identity(slm, config.dtype),
    )


def _workers(
    config: ModelsConfig, embedder: Path, slm: Path | None, policy: RestartPolicy | None
) -> list[WorkerClient]:
    devices = config.devices or (config.device,)
    count = config.workers or len(devices)
    # Workers that each take all cores would wait for each other in every pass.
    threads = config.threads or (0 if count == 1 else max((os.cpu_count() or 1) // count, 1))
    return [
        WorkerClient(
            WorkerSettings(
                embedder=str(embedder),
                slm=str(slm) if slm else None,
                device=devices[i % len(devices)],
                dtype=config.dtype,
                threads=threads,
                **dataclasses.asdict(config.limits),
            ),
            hang_timeout_s=config.hang_timeout_s,
            load_timeout_s=config.load_timeout_s,
            memory_limit_bytes=config.memory_limit_mib << 20,
            name="model worker" if count == 1 else f"model worker {i + 1}",
            policy=policy,
        )
        for i in range(count)
    ]
