"""Builds the models of one server from their configuration: the composition root's only door to this folder."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

from clag_server.models.absent import AbsentSlm
from clag_server.models.api import Embedder, EngineStatus, SlmEngine, TokenCounter
from clag_server.models.client import WorkerClient
from clag_server.models.config import Backend, ModelsConfig
from clag_server.models.folder import ModelFolder, read_embedder_info, vector_space_fingerprint
from clag_server.models.scripted import ScriptError, from_file
from clag_server.models.specs import ModelKind
from clag_server.models.store import ModelStore
from clag_server.models.tokens import FileTokenCounter, WordTokenCounter
from clag_server.models.worker_embedder import WorkerEmbedder
from clag_server.models.worker_settings import WorkerSettings
from clag_server.models.worker_slm import WorkerSlm

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ModelHost", "ModelsStatus", "build_models"]


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
    """

    def __init__(
        self,
        embedder: _StatusEmbedder,
        slm: _StatusSlm,
        token_counter: TokenCounter,
        client: WorkerClient | None = None,
    ) -> None:
        self._embedder = embedder
        self._slm = slm
        self._client = client
        self.embedder: Embedder = embedder
        self.slm: SlmEngine = slm
        self.token_counter = token_counter

    async def start(self) -> None:
        """Start the model worker; returns at once, models load in the background."""
        if self._client is not None:
            await self._client.start()

    async def stop(self) -> None:
        """Stop the model worker; calls in flight fail with `ModelUnavailableError`."""
        if self._client is not None:
            await self._client.stop()

    def status(self) -> ModelsStatus:
        """Return how both models stand now."""
        return ModelsStatus(self._embedder.status, self._slm.status)

    @property
    def worker_pid(self) -> int | None:
        """Process id of the model worker, None while there is none."""
        return self._client.child.pid if self._client is not None else None


def build_models(config: ModelsConfig) -> ModelHost:
    """Build the models; loads nothing yet.

    Args:
        config: What to build.

    Raises:
        ModelMissingError: A model is not on this machine (case E4): one line with the command that gets it.
        StoreError: A model folder lacks a file or is of an unsupported kind.
        ScriptError: The scripted backend has no script or a bad one.
    """
    if config.backend is Backend.SCRIPTED:
        if config.script is None:
            raise ScriptError("the scripted backend needs a script file")
        embedder, slm = from_file(config.script)
        return ModelHost(embedder, slm, WordTokenCounter())
    store = ModelStore(config.cache)
    embedder_folder = store.resolve(config.embedder, ModelKind.EMBEDDER)
    slm_folder = store.resolve(config.slm, ModelKind.SLM) if config.slm else None
    return _with_worker(config, embedder_folder, slm_folder)


def _with_worker(config: ModelsConfig, embedder: ModelFolder, slm: ModelFolder | None) -> ModelHost:
    info = read_embedder_info(embedder.path, config.limits.embed_tokens)
    client = WorkerClient(
        _settings(config, embedder.path, slm.path if slm else None),
        hang_timeout_s=config.hang_timeout_s,
        load_timeout_s=config.load_timeout_s,
    )
    worker_embedder = WorkerEmbedder(
        client,
        name=embedder.name,
        dim=info.dim,
        fingerprint=vector_space_fingerprint(embedder.path, info),
        window_tokens=info.window_tokens,
    )
    if slm is None:
        return ModelHost(worker_embedder, AbsentSlm(), WordTokenCounter(), client)
    return ModelHost(worker_embedder, WorkerSlm(client, name=slm.name), FileTokenCounter(slm.path), client)


def _settings(config: ModelsConfig, embedder: Path, slm: Path | None) -> WorkerSettings:
    return WorkerSettings(
        embedder=str(embedder),
        slm=str(slm) if slm else None,
        device=config.device,
        dtype=config.dtype,
        threads=config.threads,
        **dataclasses.asdict(config.limits),
    )
