"""Settings of a namespace as the JSON object of the column `namespaces.settings`: what is set, and nothing else.

Keys that this release does not know (a newer one wrote them) stay as they are.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any, Final

import pydantic_core

from clag_server.types.namespace import NamespaceSettings, RoutingUnit

NO_SETTINGS: Final = "{}"
_KNOWN: Final = frozenset(field.name for field in fields(NamespaceSettings))
_UNITS: Final = frozenset(int(unit) for unit in RoutingUnit)


def settings_from_json(text: str) -> NamespaceSettings:
    """Return the settings of a column's text; a routing unit of a newer release counts as not set."""
    if text == NO_SETTINGS:
        return NamespaceSettings()
    values: dict[str, Any] = json.loads(text)
    unit = values.get("routing_unit")
    return NamespaceSettings(
        purpose=values.get("purpose", ""),
        routing_unit=RoutingUnit(unit) if unit in _UNITS else None,
        default_time_to_live_ns=values.get("default_time_to_live_ns"),
        archive_after_ns=values.get("archive_after_ns"),
        auto_reorganize=values.get("auto_reorganize"),
    )


def settings_to_json(settings: NamespaceSettings, *, before: str = NO_SETTINGS) -> str:
    """Return the column's text for new settings; unknown keys of the text `before` are kept."""
    values = {key: value for key, value in json.loads(before).items() if key not in _KNOWN}
    values.update((key, value) for key, value in asdict(settings).items() if value is not None and value != "")
    return pydantic_core.to_json(values).decode()
