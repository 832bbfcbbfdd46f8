"""Scenarios as they are written: read from YAML, checked for their shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

__all__ = ["FOLDER", "Scenario", "ScenarioError", "ServerKind", "load"]

FOLDER = Path(__file__).resolve().parent / "scenarios"
DEFAULT_TIMEOUT_S = 90.0

_ALONE = {
    "ingest.auto_create_namespaces": "false",
    "ingest.max_attempts": "1",
    "organize.annotate": "slm",
    "organize.slm_timeout_s": "2",
    "server.unary_deadline_s": "5",
    "storage.export_snapshots_max": "1",
}
"""Settings under which a server refuses what it else does not: one server that all scenarios use in turn."""


class ScenarioError(ValueError):
    """A file of scenarios is not one."""


@dataclass(frozen=True, slots=True)
class ServerKind:
    """What server a scenario talks to.

    Attributes:
        kind: "real" (the product's own, with scripted models), "double" (one in the driver that watches the client)
            or "none".
        alone: whether no other scenario uses it at the same time. One that is killed, stopped or scripted must be.
        fresh: whether no other scenario ever uses it.
        settings: of a real one, by dotted name. Scenarios with the same ones share a server.
        script: what the models of a real one do in the beginning.
        tls: "" for none, "tls", "mtls".
        double: how the double behaves; see `double.Behaviour`.
    """

    kind: str = "real"
    alone: bool = False
    fresh: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    script: Mapping[str, Any] = field(default_factory=dict)
    tls: str = ""
    double: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the matrix.

    Attributes:
        name: FILE/NAME.
        about: what it shows, in a sentence.
        needs: features of the runner without which it is skipped.
        server: whom it talks to.
        connect: whether client "a" is connected before the first step.
        steps: what is done and expected, see README.md.
        timeout_s: longest time of the whole, in seconds, the start of its server excepted.
        slow: whether it takes many seconds, most of them for servers of its own: not part of a quick run.
    """

    name: str
    about: str
    steps: Sequence[Mapping[str, Any]]
    needs: frozenset[str] = frozenset()
    server: ServerKind = ServerKind()
    connect: bool = True
    timeout_s: float = DEFAULT_TIMEOUT_S
    slow: bool = False


def load(patterns: Sequence[str] = (), folder: Path = FOLDER) -> list[Scenario]:
    """Read all scenarios.

    Args:
        patterns: names to keep, with `*`; all when empty. A name without a slash is looked for in every file.
        folder: where the files are.

    Raises:
        ScenarioError: if a file is not one of scenarios, or a name comes twice.
    """
    found = [scenario for path in sorted(folder.glob("*.yaml")) for scenario in _file(path)]
    names = [scenario.name for scenario in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ScenarioError(f"two scenarios have the same name: {', '.join(twice)}")
    return [scenario for scenario in found if not patterns or any(_fits(scenario.name, one) for one in patterns)]


def _fits(name: str, pattern: str) -> bool:
    return fnmatch(name, pattern) or fnmatch(name.partition("/")[2], pattern)


def _file(path: Path) -> list[Scenario]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(content, list):
        raise ScenarioError(f"{path.name} is not a list of scenarios")
    return [_scenario(path, one) for one in content]


def _scenario(path: Path, given: Mapping[str, Any]) -> Scenario:
    known = {"name", "about", "needs", "server", "connect", "steps", "timeout_s", "slow"}
    missing = {"name", "about", "steps"} - set(given)
    if missing or set(given) - known:
        wrong = ", ".join(sorted(missing | (set(given) - known)))
        raise ScenarioError(f"{path.name}: scenario {given.get('name', '?')}: missing or unknown: {wrong}")
    rest = {key: given[key] for key in ("connect", "timeout_s", "slow") if key in given}
    server = _server(given.get("server", {}))
    if server.script and not (server.alone or server.fresh):
        raise ScenarioError(f"{path.name}: scenario {given['name']}: a server with a script is used alone")
    return Scenario(
        name=f"{path.stem}/{given['name']}",
        about=given["about"],
        steps=given["steps"],
        needs=frozenset(given.get("needs", ())),
        server=server,
        **rest,
    )


def _server(given: Mapping[str, Any] | str) -> ServerKind:
    """What a scenario says of its server; one that is used alone has the settings that such scenarios share."""
    if given == "alone":
        return ServerKind(alone=True, settings=_ALONE)
    if not isinstance(given, Mapping):
        raise ScenarioError(f"a server is not {given!r}")
    if given.get("alone"):
        return ServerKind(**{"settings": _ALONE, **given})
    return ServerKind(**given)
