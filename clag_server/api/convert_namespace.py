"""Settings of a namespace between protobuf and domain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from clag.v1 import admin_service_pb2 as pb
from google.protobuf.duration_pb2 import Duration

from clag_server.contract.violations import shown
from clag_server.types.errors import FieldViolation, InvalidField
from clag_server.types.namespace import NamespaceSettings, RoutingUnit

if TYPE_CHECKING:
    from clag.v1.admin_service_pb2 import RoutingUnit as UnitPb

__all__ = ["revision_of_settings", "settings_from", "settings_to"]

_NS_PER_S: Final = 1_000_000_000

_FIELDS: Final = {
    "purpose": "purpose",
    "routing_unit": "routing_unit",
    "default_time_to_live": "default_time_to_live_ns",
    "archive_after": "archive_after_ns",
    "auto_reorganize": "auto_reorganize",
}
"""Fields of the message, and what they are called in the domain."""


def settings_from(message: pb.NamespaceSettings) -> NamespaceSettings:
    """The settings of a message that passed the schema's rules; what is not set is the server's default."""
    return NamespaceSettings(
        purpose=message.purpose,
        routing_unit=RoutingUnit(message.routing_unit) if message.routing_unit else None,
        default_time_to_live_ns=_ns(message.default_time_to_live)
        if _has(message, "default_time_to_live")
        else None,
        archive_after_ns=_ns(message.archive_after) if _has(message, "archive_after") else None,
        auto_reorganize=message.auto_reorganize if _has(message, "auto_reorganize") else None,
    )


def settings_to(settings: NamespaceSettings) -> pb.NamespaceSettings:
    """The message of settings."""
    message = pb.NamespaceSettings(
        purpose=settings.purpose,
        routing_unit=cast("UnitPb.ValueType", int(settings.routing_unit or 0)),
        auto_reorganize=settings.auto_reorganize,
    )
    if settings.default_time_to_live_ns is not None:
        message.default_time_to_live.CopyFrom(_span(settings.default_time_to_live_ns))
    if settings.archive_after_ns is not None:
        message.archive_after.CopyFrom(_span(settings.archive_after_ns))
    return message


def revision_of_settings(request: pb.UpdateNamespaceRequest) -> Callable[[NamespaceSettings], NamespaceSettings]:
    """What an update makes of settings.

    Raises:
        InvalidField: a path of the mask names no setting.
    """
    paths = list(request.update_mask.paths)
    wrong = [
        FieldViolation(
            f"update_mask.paths[{index}]", f'"{shown(path)}" is no setting; there are {", ".join(sorted(_FIELDS))}'
        )
        for index, path in enumerate(paths)
        if path not in _FIELDS
    ]
    if not paths:
        wrong = [FieldViolation("update_mask.paths", "names no setting; say what changes")]
    if wrong:
        raise InvalidField(*wrong)
    new = settings_from(request.settings)
    changed: dict[str, Any] = {_FIELDS[path]: getattr(new, _FIELDS[path]) for path in paths}
    return lambda settings: replace(settings, **changed)


def _has(message: pb.NamespaceSettings, field: str) -> bool:
    return bool(message.HasField(field))  # type: ignore[arg-type]


def _ns(span: Duration) -> int:
    return span.seconds * _NS_PER_S + span.nanos


def _span(ns: int) -> Duration:
    return Duration(seconds=ns // _NS_PER_S, nanos=ns % _NS_PER_S)
