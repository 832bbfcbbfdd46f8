"""Settings of one namespace: what `clag.v1.NamespaceSettings` says, as the domain sees it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class RoutingUnit(enum.IntEnum):
    """What a routing decision is about (numbers as in `clag.v1.RoutingUnit`)."""

    EPISODE = 1
    MEMORY = 2


@dataclass(frozen=True, slots=True)
class NamespaceSettings:
    """What can be set for one namespace; None (and an empty purpose) is the server's default.

    Attributes:
        purpose: What the agent is for, in a sentence; part of what the SLM sees.
        routing_unit: What a routing decision is about.
        default_time_to_live_ns: Memories without an expire time are forgotten this long after they arrive.
        archive_after_ns: Clusters without activity for this long are archived.
        auto_reorganize: Whether re-organization starts by itself.
    """

    purpose: str = ""
    routing_unit: RoutingUnit | None = None
    default_time_to_live_ns: int | None = None
    archive_after_ns: int | None = None
    auto_reorganize: bool | None = None
