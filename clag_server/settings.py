"""Every setting of the server, in one typed place, and the only module that reads the environment.

Sources, strongest first: flags, environment (`CLAG_SECTION__NAME`), the TOML file (`--config`, else `$CLAG_CONFIG`,
else `~/.config/clag/config.toml`), defaults. An unknown key is an error that names it; `effective` says where each
value came from. How the layers are read and merged is in `settings_sources`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from clag_server.memory.config import IngestConfig, OrganizeConfig, RetrieveConfig
from clag_server.models.config import Backend, ModelsConfig
from clag_server.settings_ranges import check_ranges
from clag_server.settings_sections import (
    IndexSettings,
    LogFormat,
    LogSettings,
    ModelSettings,
    Section,
    ServerSettings,
    StorageSettings,
)
from clag_server.settings_sources import DEFAULT_ORIGIN, SettingsError, flatten, read_layers

__all__ = [
    "Effective",
    "IndexSettings",
    "LogFormat",
    "LogSettings",
    "ModelSettings",
    "ServerSettings",
    "Settings",
    "SettingsError",
    "StorageSettings",
    "effective",
    "load",
    "models_config",
]


class Settings(Section):
    """All settings; made by `load`."""

    server: ServerSettings = Field(default_factory=ServerSettings)
    storage: StorageSettings = Field(default_factory=StorageSettings)
    models: ModelSettings = Field(default_factory=ModelSettings)
    index: IndexSettings = Field(default_factory=IndexSettings)
    ingest: IngestConfig = Field(default_factory=IngestConfig)
    organize: OrganizeConfig = Field(default_factory=OrganizeConfig)
    retrieve: RetrieveConfig = Field(default_factory=RetrieveConfig)
    log: LogSettings = Field(default_factory=LogSettings)
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    def set_origins(self, origins: Mapping[str, str]) -> None:
        """Remember where each setting came from, by dotted name."""
        self._origins.update(origins)

    def origin(self, key: str) -> str:
        """Say where a setting came from."""
        return self._origins.get(key, DEFAULT_ORIGIN)

    @model_validator(mode="after")
    def _ranges(self) -> Self:
        check_ranges(self.ingest, self.organize, self.retrieve)
        return self


def models_config(settings: ModelSettings) -> ModelsConfig:
    """What the settings say of models, as the models take it."""
    return ModelsConfig(
        cache=settings.cache_dir,
        backend=Backend.SCRIPTED if settings.backend == "scripted" else Backend.WORKER,
        embedder=settings.embedder,
        slm=settings.slm or None,
        slm_url=settings.slm_url,
        slm_api_key_file=settings.slm_api_key_file,
        slm_concurrency=settings.slm_concurrency,
        device=settings.device,
        devices=settings.devices,
        workers=settings.workers,
        memory_limit_mib=settings.memory_limit_mib,
        dtype=settings.dtype,
        threads=settings.threads,
        hang_timeout_s=settings.hang_timeout_s,
        load_timeout_s=settings.load_timeout_s,
        script=settings.script,
    )


class Effective(NamedTuple):
    """One line of `clag config`; secrets appear only as the paths of their files.

    `origin` is "default", "file PATH", "environment NAME" or "flag".
    """

    key: str
    value: str
    origin: str


def known_keys() -> tuple[str, ...]:
    """Dotted names of all settings, in the order of this module."""
    return tuple(flatten(Settings().model_dump()))


def load(flags: Mapping[str, object] | None = None, *, config: Path | None = None) -> Settings:
    """Read all sources and validate them once.

    Args:
        flags: Values of command line flags by dotted name ("server.tcp"); None values are skipped.
        config: The TOML file of `--config`; it must exist when given.

    Raises:
        SettingsError: With one readable line for each wrong setting. Commands exit with 2.
    """
    layers = read_layers(flags or {}, config=config, known=known_keys())
    try:
        settings = Settings.model_validate(layers.nested())
    except ValidationError as invalid:
        raise SettingsError([_line(error, layers.origins) for error in invalid.errors()]) from None
    settings.set_origins(layers.origins)
    return settings


def effective(settings: Settings) -> list[Effective]:
    """List every setting with its value and where it came from, for `clag config`."""
    rows = []
    for key, value in flatten(settings.model_dump(mode="json")).items():
        shown = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        if key == "index.uri":
            shown = _without_password(shown)
        rows.append(Effective(key, shown, settings.origin(key)))
    return rows


def _without_password(uri: str) -> str:
    """Hide `user:password@` of an address."""
    scheme, separator, rest = uri.partition("://")
    if not separator or "@" not in rest:
        return uri
    return f"{scheme}://***@{rest.rpartition('@')[2]}"


def _names(message: str, key: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", message) is not None


def _line(error: Mapping[str, object], origins: Mapping[str, str]) -> str:
    """One sentence of a validation error: setting, fault, and where the value came from."""
    location = error["loc"]
    key = ".".join(str(part) for part in location) if isinstance(location, tuple) else str(location)
    message = str(error["msg"]).removeprefix("Value error, ")
    if key not in origins:
        # A rule about several settings: where those that it names and that somebody set came from.
        named = [f"{name} is from {origin}" for name, origin in sorted(origins.items()) if _names(message, name)]
        told = f"{message} ({', '.join(named)})" if named else message
        return told if not key or message.startswith(key) else f"{key}: {told}"
    return f"{key}: {message} (from {origins[key]}, got {error['input']!r})"
