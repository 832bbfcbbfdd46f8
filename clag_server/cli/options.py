"""Flags that several commands share, and how they become settings and a connection."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

__all__ = [
    "MAX_SECONDS",
    "ConnectionFlags",
    "Seconds",
    "client_options",
    "json_option",
    "model_options",
    "namespace_option",
    "settings_options",
]

DEFAULT_NAMESPACE: Final = "default"
MAX_SECONDS: Final = 86_400.0
"""Longest wait that a flag may ask for: a day. gRPC takes far longer ones for none at all."""
_F = TypeVar("_F", bound=Callable[..., Any])
_MAX_PORT: Final = 65_535
_PATH = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True)
class ConnectionFlags:
    """How the caller wants to reach the server; None leaves it to the settings.

    Attributes:
        socket: Unix socket.
        address: "host:port"; wins over a socket that only the settings name.
        token_file: File with the bearer token.
        tls_ca: PEM file with the authorities to trust, or "system" for those of the system; turns TLS on.
        timeout_s: Longest time of a call that is not a stream, in seconds.
        config: The settings file.
    """

    socket: Path | None
    address: str | None
    token_file: Path | None
    tls_ca: str | None
    timeout_s: float
    config: Path | None


class Seconds(click.ParamType[float]):
    """A wait: above 0, at most a day; click's own range lets "nan" through."""

    name = "seconds"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number."""
        try:
            seconds = float(str(value))
        except ValueError:
            seconds = math.nan
        if not 0 < seconds <= MAX_SECONDS:
            self.fail(f"{value} is not a number of seconds above 0 and up to {MAX_SECONDS:,.0f}", param, ctx)
        return seconds


_config = click.option("--config", type=_PATH, help="Settings file (TOML).")
_debug = click.option("--debug", is_flag=True, expose_value=False, help="On an error, show the traceback too.")

_CONNECTION: Final = (
    click.option("--socket", type=_PATH, help="Unix socket of the server.  [default: from the settings]"),
    click.option("--address", metavar="HOST:PORT", help="TCP address of the server, instead of the socket."),
    click.option("--token-file", type=_PATH, help="File with the bearer token, for TCP."),
    click.option("--tls-ca", metavar="FILE|system", help="Speak TLS and trust these authorities (PEM)."),
    click.option(
        "--timeout",
        metavar="SECONDS",
        type=Seconds(),
        default=30.0,
        show_default=True,
        help="Longest wait for an answer, in seconds.",
    ),
    _config,
    _debug,
)

_SETTINGS: Final[Mapping[str, tuple[str, str]]] = {
    "--socket": ("server.socket", 'Unix socket to listen on ("" for none).'),
    "--tcp": ("server.tcp", "host:port to listen on as well."),
    "--token-file": ("server.token_file", "File with the token that TCP callers must present."),
    "--tls-cert": ("server.tls_cert", "PEM certificate of the server."),
    "--tls-key": ("server.tls_key", "PEM private key of the server."),
    "--tls-client-ca": ("server.tls_client_ca", "PEM authorities whose clients are let in."),
    "--data-dir": ("storage.data_dir", "Where memories are kept."),
    "--embedder": ("models.embedder", "Embedding model: a known name, a hub name or a folder."),
    "--slm": ("models.slm", 'Small language model: the same, or a .gguf file ("" for none).'),
    "--models-dir": ("models.cache_dir", "Where models are kept."),
    "--threads": ("models.threads", "CPU threads of the models (0: all cores)."),
    "--device": ("models.device", "auto, cpu, cuda, cuda:1 or mps."),
    "--slm-workers": ("models.workers", "Processes that run the models (0: one for each device)."),
    "--milvus-uri": ("index.uri", 'A Milvus server ("" for the embedded one).'),
    "--log-level": ("log.level", "debug, info, warning or error."),
    "--log-format": ("log.format", "auto, human or json."),
}
"""Flags of the common settings; every other setting is set with `--set section.key=value`."""


def client_options(command: _F) -> Callable[..., Any]:
    """Add the connection flags; the command gets them as `connection`, a `ConnectionFlags`."""

    @functools.wraps(command)
    def with_flags(
        socket: Path | None,
        address: str | None,
        token_file: Path | None,
        tls_ca: str | None,
        timeout: float,
        config: Path | None,
        **others: object,
    ) -> object:
        if socket is not None and address is not None:
            raise click.UsageError("--socket and --address exclude each other")
        if address is not None and not _is_address(address):
            raise click.UsageError(f'--address "{address}" is not of the form HOST:PORT')
        flags = ConnectionFlags(socket, address, token_file, tls_ca, timeout, config)
        return command(connection=flags, **others)

    return _with(with_flags, _CONNECTION)


def settings_options(command: _F) -> Callable[..., Any]:
    """Add the flags of all settings; the command gets `flags` (by dotted name) and `config`."""
    return _settings(command, _SETTINGS)


def model_options(command: _F) -> Callable[..., Any]:
    """Add the flags of the settings that say which models there are; otherwise as `settings_options`."""
    return _settings(command, {flag: _SETTINGS[flag] for flag in ("--embedder", "--slm", "--models-dir")})


def _settings(command: _F, settings: Mapping[str, tuple[str, str]]) -> Callable[..., Any]:
    names = {flag.removeprefix("--").replace("-", "_"): key for flag, (key, _) in settings.items()}

    @functools.wraps(command)
    def with_flags(config: Path | None, assignments: tuple[str, ...], **others: object) -> object:
        flags: dict[str, object] = {}
        for parameter, key in names.items():
            value = others.pop(parameter)
            if value is not None:
                flags[key] = value
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals or "." not in key:
                raise click.UsageError(f'--set "{assignment}" is not of the form section.key=value')
            flags[key.strip()] = text
        return command(flags=flags, config=config, **others)

    options = [click.option(flag, help=f"{text}  [{key}]") for flag, (key, text) in settings.items()]
    options.append(
        click.option("--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Any other setting.")
    )
    return _with(with_flags, (*options, _config, _debug))


def namespace_option(command: _F) -> _F:
    """Add `--namespace`."""
    return click.option(
        "-n",
        "--namespace",
        default=DEFAULT_NAMESPACE,
        show_default=True,
        help="Agent or tenant whose memories.",
    )(command)


def json_option(command: _F) -> _F:
    """Add `--json`; the command gets `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")(command)


def _is_address(text: str) -> bool:
    """Whether a text is "host:port" or "[v6]:port"."""
    host, _, port = text.rpartition(":")
    whole = host.startswith("[") and host.endswith("]") if ":" in host else bool(host)
    return whole and not host.startswith("/") and port.isascii() and port.isdigit() and 0 < int(port) <= _MAX_PORT


def _with(command: Callable[..., Any], options: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command
