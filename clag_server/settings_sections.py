"""The sections of the settings that say how the server runs: its addresses, its stores, its models, its log.

Those of the algorithms are with the algorithms (`memory.config`).
"""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from clag_server.memory.feed_config import ExportConfig, WatchConfig
from clag_server.models.config import ModelsConfig
from clag_server.models.remote_config import parse_address
from clag_server.settings_sources import default_cache_dir, default_data_dir, default_socket
from clag_server.vectors.address import check_uri

__all__ = [
    "MAX_SOCKET_PATH_BYTES",
    "IndexSettings",
    "LogFormat",
    "LogSettings",
    "ModelSettings",
    "Section",
    "ServerSettings",
    "StorageSettings",
]

MAX_SOCKET_PATH_BYTES = 104
"""Room for a Unix socket's path in sockaddr_un: 108 bytes on Linux, 104 on BSD and macOS, with the closing NUL."""

_MODEL_DEFAULTS = ModelsConfig(cache=Path())
_WATCH_DEFAULTS = WatchConfig()
_EXPORT_DEFAULTS = ExportConfig()

_PositiveSeconds = Annotated[float, Field(gt=0, le=86_400)]


def _expanded(path: Path | None) -> Path | None:
    """Expand `~` and make the path absolute; "" (which pydantic reads as ".") stays unset."""
    if path is None or str(path) in ("", "."):
        return None
    return path.expanduser().absolute()


def _required(path: Path) -> Path:
    expanded = _expanded(path)
    if expanded is None:
        raise ValueError("must not be empty")
    return expanded


_OptionalPath = Annotated[Path | None, AfterValidator(_expanded)]
_RequiredPath = Annotated[Path, AfterValidator(_required)]


class Section(BaseModel):
    """What all sections are: frozen, and without keys that nobody knows."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class LogFormat(StrEnum):
    """How log lines look; AUTO is HUMAN on a terminal and JSON elsewhere."""

    AUTO = "auto"
    HUMAN = "human"
    JSON = "json"


class ServerSettings(Section):
    """Where the server listens and how it ends.

    Attributes:
        socket: Unix socket ("" for none). Its directory is made 0700, the socket is 0600.
        tcp: "host:port" to listen on as well ("" for none). Port 0 takes a free one.
        token_file: File with the bearer token that TCP callers must present. A loopback server without one
            makes `<data_dir>/token`.
        tls_cert: PEM certificate chain of the server. With `tls_key` it turns TLS on.
        tls_key: PEM private key of the server.
        tls_client_ca: PEM certificates of the authorities whose clients are let in (mutual TLS).
        drain_s: Longest time in seconds that a shutdown waits for calls to end.
        unary_deadline_s: Longest time in seconds of a call that is not a stream.
    """

    socket: _OptionalPath = Field(default_factory=default_socket)
    tcp: str = ""
    token_file: _OptionalPath = None
    tls_cert: _OptionalPath = None
    tls_key: _OptionalPath = None
    tls_client_ca: _OptionalPath = None
    drain_s: _PositiveSeconds = 10.0
    unary_deadline_s: _PositiveSeconds = 30.0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.socket is None and not self.tcp:
            raise ValueError("set server.socket or server.tcp: there is nothing to listen on")
        if self.socket is not None and len(bytes(self.socket)) >= MAX_SOCKET_PATH_BYTES:
            raise ValueError(
                f"server.socket is {len(bytes(self.socket))} bytes long, the system allows "
                f"{MAX_SOCKET_PATH_BYTES - 1}: choose a shorter path"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("server.tls_cert and server.tls_key must be set together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("server.tls_client_ca needs server.tls_cert and server.tls_key")
        if self.tcp:
            self.tcp_address()
            if not self.tcp_is_loopback() and self.tls_cert is None:
                raise ValueError(
                    f'server.tcp "{self.tcp}" is not a loopback address: that is refused without TLS; '
                    "set server.tls_cert and server.tls_key, or listen on 127.0.0.1"
                )
        return self

    def tcp_address(self) -> tuple[str, int]:
        """Split `tcp` into host and port. Raises ValueError when it is not "host:port"."""
        host, separator, port = self.tcp.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
            raise ValueError(f'server.tcp "{self.tcp}" is not host:port, such as 127.0.0.1:7070')
        return host, int(port)

    def tcp_is_loopback(self) -> bool:
        """Whether only this machine can reach the TCP port (the name "localhost" or a loopback address)."""
        host, _ = self.tcp_address()
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False


class StorageSettings(Section):
    """Where memories are kept.

    Attributes:
        data_dir: Directory of the catalog and the embedded index; one server at a time.
        changes_keep: Newest changes that stay in the change log, which watches read, whatever their age.
        changes_keep_days: Changes younger than so many days stay in it, whatever their number.
        watch_checkpoint_s: A watch hears of the newest revision at least so often, in seconds.
        export_snapshot_keep_s: A snapshot that no export reads from for so long in seconds is removed.
        export_snapshots_max: Snapshots of exports at once; each is a copy of a namespace on disk.
    """

    data_dir: _RequiredPath = Field(default_factory=default_data_dir)
    changes_keep: Annotated[int, Field(ge=0)] = _WATCH_DEFAULTS.changes_keep
    changes_keep_days: Annotated[float, Field(ge=0, le=36_500)] = _WATCH_DEFAULTS.changes_keep_days
    watch_checkpoint_s: _PositiveSeconds = _WATCH_DEFAULTS.checkpoint_s
    export_snapshot_keep_s: _PositiveSeconds = _EXPORT_DEFAULTS.snapshot_keep_s
    export_snapshots_max: Annotated[int, Field(ge=1, le=1024)] = _EXPORT_DEFAULTS.snapshots_max


class ModelSettings(Section):
    """Which models run, and how.

    Attributes:
        backend: "local" runs models in a worker process; "scripted" answers from `script` (for tests).
        script: JSON file of the scripted backend.
        embedder: Name of a known model, hub name or folder of the embedding model.
        slm: The same for the small language model, or a `.gguf` file; "" runs without one. With `slm_url`, the
            model's name there.
        slm_url: Base address of an OpenAI-compatible server that runs the language model, such as
            "http://127.0.0.1:8000/v1"; "" runs it in the worker.
        slm_api_key_file: File with the key that this server asks for.
        slm_concurrency: Requests to this server in flight at once.
        cache_dir: Where fetched models are kept, in its folder `models`.
        threads: CPU threads of a worker; 0 shares all cores out among the workers.
        device: "auto", "cpu", "cuda", "cuda:1", "mps".
        devices: Devices of several workers, taken in turn; none means `device`.
        workers: Worker processes, each with both models; 0 runs one for each device.
        memory_limit_mib: Resident memory in MiB at which a worker is replaced; 0 sets no limit.
        dtype: Of the language model: "auto", "float32", "bfloat16", "float16".
        hang_timeout_s: A worker that has work and is silent for so long in seconds is replaced.
        load_timeout_s: A worker whose first model is not loaded after this time in seconds is replaced.
    """

    backend: Literal["local", "scripted"] = "local"
    script: _OptionalPath = None
    embedder: Annotated[str, Field(min_length=1)] = _MODEL_DEFAULTS.embedder
    slm: str = _MODEL_DEFAULTS.slm or ""
    slm_url: str = ""
    slm_api_key_file: _OptionalPath = None
    slm_concurrency: Annotated[int, Field(ge=1, le=4096)] = _MODEL_DEFAULTS.slm_concurrency
    cache_dir: _RequiredPath = Field(default_factory=default_cache_dir)
    threads: Annotated[int, Field(ge=0, le=1024)] = _MODEL_DEFAULTS.threads
    device: Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")] = _MODEL_DEFAULTS.device
    devices: tuple[Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")], ...] = ()
    workers: Annotated[int, Field(ge=0, le=64)] = _MODEL_DEFAULTS.workers
    memory_limit_mib: Annotated[int, Field(ge=0)] = _MODEL_DEFAULTS.memory_limit_mib
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    hang_timeout_s: _PositiveSeconds = _MODEL_DEFAULTS.hang_timeout_s
    load_timeout_s: _PositiveSeconds = _MODEL_DEFAULTS.load_timeout_s

    @model_validator(mode="after")
    def _script_when_scripted(self) -> Self:
        if self.backend == "scripted" and self.script is None:
            raise ValueError(
                'models.script must name a file (of answers, JSON) when models.backend is "scripted"; "local" runs '
                "real models"
            )
        return self

    @model_validator(mode="after")
    def _model_when_remote(self) -> Self:
        if self.slm_url:
            if not self.slm:
                raise ValueError("models.slm must name the model on the server at models.slm_url")
            parse_address(self.slm_url)
        elif self.slm_api_key_file is not None:
            raise ValueError("models.slm_api_key_file needs models.slm_url")
        return self


class IndexSettings(Section):
    """The vector index.

    Attributes:
        uri: Address of a Milvus server; "" runs the embedded one.
        token_file: File (0600) with the Milvus token, "user:password" or an API key.
        ca_file: PEM certificates of the authorities that sign the server's certificate, where the system's do not.
        verify: When the index is read through and compared with the catalog: each time it is "open"ed, or "never".
    """

    uri: str = ""
    token_file: _OptionalPath = None
    ca_file: _OptionalPath = None
    verify: Literal["open", "never"] = "open"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.uri and (self.token_file is not None or self.ca_file is not None):
            raise ValueError("index.token_file and index.ca_file need index.uri: the embedded index takes neither")
        if self.uri:
            check_uri(self.uri, token=self.token_file is not None, ca_file=self.ca_file is not None)
        return self


class LogSettings(Section):
    """Logging (to standard error).

    Attributes:
        level: Least severe level shown.
        format: Look of the lines.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: LogFormat = LogFormat.AUTO
