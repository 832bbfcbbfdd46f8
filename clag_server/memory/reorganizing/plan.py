"""A plan of re-organization: steps over episodes and clusters, and how it is kept in an operation.

Episodes move whole, as routing does it: neighbours in time stay together. New clusters have negative numbers until
the plan is applied.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from clag_server.types.errors import ClagError
from clag_server.types.memory import DecidedBy
from clag_server.types.operation import JsonValue

__all__ = ["Plan", "PlanStep", "ReorganizeFailed", "StepKind", "plan_from", "plan_to", "shown", "steps_of"]

SAMPLES = 20
"""Memories that a step names, at most (the contract's bound)."""

STEPS_SHOWN = 500
"""Steps that a result tells, at most, those of most memories first: it must fit a message."""


class ReorganizeFailed(ClagError):
    """No plan was found that the checks let through; nothing was changed."""


class StepKind(enum.IntEnum):
    """What a step does (numbers as in `clag.v1.PlanStepKind`)."""

    NEW = 1
    MERGE = 2
    SPLIT = 3
    RENAME = 4
    REASSIGN = 5


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step.

    Attributes:
        kind: What it does.
        sources: The clusters that it starts from.
        target: The cluster that it leads to; negative for one that it founds.
        episodes: The episodes that go to the target.
        memories: How many memories those are (RENAME: those of the cluster).
        reason: Why, in a sentence.
        old_title: Title of the target before (SPLIT, NEW, REASSIGN: of the source); "" for none.
        new_title: Title of the target after; "" leaves it to the server.
        title_by: Who wrote the new title.
        samples: Ids of some of the memories, at most `SAMPLES`.
    """

    kind: StepKind
    sources: tuple[int, ...]
    target: int
    episodes: tuple[int, ...]
    memories: int
    reason: str
    old_title: str = ""
    new_title: str = ""
    title_by: DecidedBy = DecidedBy.VECTOR
    samples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole plan.

    Attributes:
        steps: In the order in which they are applied.
        by: Who made it: SLM or VECTOR.
        clusters_before: Active clusters before.
        clusters_after: Active clusters after.
        attempts: Plans that were made until this one.
        dropped: Steps that named what is not there, or what must not be touched.
        missed: Why it does not lead to as many clusters as were asked for; "" where it does.
    """

    steps: tuple[PlanStep, ...]
    by: DecidedBy
    clusters_before: int
    clusters_after: int
    attempts: int = 1
    dropped: int = 0
    missed: str = ""

    @property
    def moved(self) -> int:
        """Memories that change their cluster, one that moves twice counted twice."""
        return sum(step.memories for step in self.steps if step.kind is not StepKind.RENAME)


def plan_to(plan: Plan) -> dict[str, JsonValue]:
    """Return a plan as an operation keeps it."""
    return {
        "steps": [_step_to(step) for step in plan.steps],
        "by": int(plan.by),
        "clusters_before": plan.clusters_before,
        "clusters_after": plan.clusters_after,
        "attempts": plan.attempts,
        "dropped": plan.dropped,
        "missed": plan.missed,
    }


def plan_from(kept: Mapping[str, JsonValue]) -> Plan:
    """Return the plan that `plan_to` wrote."""
    return Plan(
        steps=steps_of(kept),
        by=DecidedBy(_whole(kept["by"])),
        clusters_before=_whole(kept["clusters_before"]),
        clusters_after=_whole(kept["clusters_after"]),
        attempts=_whole(kept["attempts"]),
        dropped=_whole(kept["dropped"]),
        missed=str(kept.get("missed", "")),
    )


def steps_of(kept: Mapping[str, JsonValue]) -> tuple[PlanStep, ...]:
    """Return the steps that a plan or a result holds."""
    return tuple(_step_from(cast("Mapping[str, JsonValue]", one)) for one in _list(kept.get("steps")))


def shown(steps: Sequence[PlanStep]) -> list[JsonValue]:
    """Return steps as a result tells them: without episodes, and of very many the largest."""
    largest = sorted(range(len(steps)), key=lambda i: (-steps[i].memories, i))[:STEPS_SHOWN]
    return [_step_to(steps[i]) | {"episodes": []} for i in sorted(largest)]


def _step_to(step: PlanStep) -> dict[str, JsonValue]:
    return {
        "kind": int(step.kind),
        "sources": list(step.sources),
        "target": step.target,
        "episodes": list(step.episodes),
        "memories": step.memories,
        "reason": step.reason,
        "old_title": step.old_title,
        "new_title": step.new_title,
        "title_by": int(step.title_by),
        "samples": list(step.samples),
    }


def _step_from(kept: Mapping[str, JsonValue]) -> PlanStep:
    return PlanStep(
        kind=StepKind(_whole(kept["kind"])),
        sources=tuple(_whole(number) for number in _list(kept["sources"])),
        target=_whole(kept["target"]),
        episodes=tuple(_whole(number) for number in _list(kept["episodes"])),
        memories=_whole(kept["memories"]),
        reason=str(kept["reason"]),
        old_title=str(kept["old_title"]),
        new_title=str(kept["new_title"]),
        title_by=DecidedBy(_whole(kept["title_by"])),
        samples=tuple(str(one) for one in _list(kept["samples"])),
    )


def _whole(value: JsonValue) -> int:
    if not isinstance(value, int):
        raise TypeError(f"an operation holds {type(value).__name__} where a whole number belongs")
    return value


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
