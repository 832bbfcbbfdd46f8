"""What a language model earned in the competence probe, in a few words."""

from __future__ import annotations

from clag.v1 import admin_service_pb2 as pb

from clag_server.cli.words import enum_word, moment

__all__ = ["probe_line", "trusted_with"]


def trusted_with(probe: pb.ProbeResult) -> str:
    """Say what a model is trusted with, and with which weights."""
    trusted = [
        f"{enum_word(pb.ProbeSkill.Name, one.skill)} (weight {one.weight:g})"
        for one in probe.skills
        if one.weight > 0
    ]
    return f"trusted with {', '.join(trusted) or 'nothing'}"


def probe_line(info: pb.GetServerInfoResponse) -> str:
    """Say the same of a server's model, and since when; "" where there is no model."""
    if info.slm.state == pb.MODEL_STATE_DISABLED:
        return ""
    for policy in ("full", "none"):
        if f"slm-trust-{policy}" in info.capabilities:
            return f"not asked for: organize.trust is {policy}"
    if not info.HasField("probe"):
        return "not yet"
    return f"{trusted_with(info.probe)} (since {moment(info.probe.time)} UTC)"
