"""Reading the layers of settings: flags, environment, TOML file; and the default places of a user's files.

Each layer becomes a flat mapping of dotted names so that merging is "the strongest layer that names a key wins",
and so that the origin of each key is known.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ENV_PREFIX = "CLAG_"
ENV_SEPARATOR = "__"
DEFAULT_ORIGIN = "default"
FLAG_ORIGIN = "flag"


class SettingsError(Exception):
    """The settings are wrong. `lines` has one readable sentence for each fault."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


@dataclass(frozen=True, slots=True)
class Layers:
    """Merged settings by dotted name, and where each came from."""

    values: Mapping[str, object]
    origins: Mapping[str, str]

    def nested(self) -> dict[str, dict[str, object]]:
        """The values as sections of names."""
        sections: dict[str, dict[str, object]] = {}
        for key, value in self.values.items():
            section, _, name = key.partition(".")
            sections.setdefault(section, {})[name] = value
        return sections


def read_layers(flags: Mapping[str, object], *, config: Path | None, known: Iterable[str]) -> Layers:
    """Read and merge all sources.

    Args:
        flags: By dotted name; None values are skipped.
        config: A file that must exist; None takes `$CLAG_CONFIG`, else the user's file where there is one.
        known: All dotted names.

    Raises:
        SettingsError: For an unreadable file and for unknown names.
    """
    names = frozenset(known)
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    faults: list[str] = []

    def add(layer: Mapping[str, object], origin: Mapping[str, str]) -> None:
        for key, value in layer.items():
            if key not in names:
                faults.append(_unknown(key, origin[key], names))
            else:
                values[key] = value
                origins[key] = origin[key]

    path = _config_path(config)
    if path is not None:
        from_file = flatten(_read_toml(path))
        add(from_file, dict.fromkeys(from_file, f"file {path}"))
    from_env, env_names = _read_environment()
    add(from_env, env_names)
    from_flags = {key: value for key, value in flags.items() if value is not None}
    add(from_flags, dict.fromkeys(from_flags, FLAG_ORIGIN))
    if faults:
        raise SettingsError(faults)
    return Layers(values, origins)


def flatten(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Turn nested sections into dotted names."""
    flat: dict[str, object] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def runtime_dir() -> Path:
    """Directory of sockets and port locks: `$XDG_RUNTIME_DIR/clag`, else `~/.clag`."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(base) / "clag" if base and Path(base).is_dir() else Path.home() / ".clag"


def default_socket() -> Path:
    """Where a server of this user listens, and where its clients look."""
    return runtime_dir() / "clag.sock"


def default_data_dir() -> Path:
    """`$XDG_DATA_HOME/clag`, else `~/.local/share/clag`."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if base else Path.home() / ".local" / "share") / "clag"


def default_cache_dir() -> Path:
    """What can be fetched again: `$CLAG_CACHE`, else `$XDG_CACHE_HOME/clag`, else `~/.cache/clag`."""
    own = os.environ.get("CLAG_CACHE", "")
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(own) if own else (Path(base) if base else Path.home() / ".cache") / "clag"


def _config_path(config: Path | None) -> Path | None:
    """The file to read. One that was asked for must exist; the user's default file may be missing."""
    asked = config or (Path(own) if (own := os.environ.get("CLAG_CONFIG", "")) else None)
    if asked is not None:
        return asked.expanduser()
    base = os.environ.get("XDG_CONFIG_HOME", "")
    usual = (Path(base) if base else Path.home() / ".config") / "clag" / "config.toml"
    return usual if usual.is_file() else None


def _read_toml(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingsError([f"cannot read the settings file {path}: {error.strerror}"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError([f"the settings file {path} is not valid TOML: {error}"]) from error


def _read_environment() -> tuple[dict[str, object], dict[str, str]]:
    """`CLAG_SECTION__NAME` by dotted name, and the variable's name for each.

    Variables without the separator (`CLAG_CONFIG`, `CLAG_CACHE`) are no settings.
    """
    values: dict[str, object] = {}
    names: dict[str, str] = {}
    for variable, value in sorted(os.environ.items()):
        upper = variable.upper()
        if not upper.startswith(ENV_PREFIX) or ENV_SEPARATOR not in upper:
            continue
        key = upper.removeprefix(ENV_PREFIX).lower().replace(ENV_SEPARATOR, ".")
        values[key] = value
        names[key] = f"environment {variable}"
    return values, names


def _unknown(key: str, origin: str, known: frozenset[str]) -> str:
    nearest = difflib.get_close_matches(key, sorted(known), n=1)
    hint = f'; did you mean "{nearest[0]}"?' if nearest else ""
    return f'unknown setting "{key}" (from {origin}){hint}'
