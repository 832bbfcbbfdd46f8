"""`clag reorganize`: have the clusters of a namespace put right, or see what would be done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import click
from clag.v1 import admin_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient, RetryPolicy

from clag_server.cli.connection import talk
from clag_server.cli.errors import ExitCode
from clag_server.cli.operations import begun_or_running, follow, told
from clag_server.cli.options import ConnectionFlags, client_options, json_option
from clag_server.cli.safe import one_line, shorten
from clag_server.cli.words import enum_word

__all__ = ["reorganize_command"]

_TITLE_CHARS: Final = 60
_AT_ONCE: Final = RetryPolicy(reconnect_budget_s=0.0)
"""Whoever types a command sees that no server answers, and need not wait for one."""

_WORDS: Final[Mapping[int, str]] = {
    pb.PLAN_STEP_KIND_NEW: "found",
    pb.PLAN_STEP_KIND_MERGE: "merge",
    pb.PLAN_STEP_KIND_SPLIT: "split",
    pb.PLAN_STEP_KIND_RENAME: "rename",
    pb.PLAN_STEP_KIND_REASSIGN: "move",
}


@click.command("reorganize")
@click.argument("namespace")
@click.option("--dry-run", is_flag=True, help="Make the plan, show it and change nothing.")
@click.option(
    "--target",
    type=click.IntRange(0, 4096),
    default=0,
    metavar="N",
    help="Make it so many clusters, or say why that cannot be.  [default: as the memories suggest]",
)
@click.option("--cluster", "clusters", multiple=True, metavar="ID", help="Look at this cluster only (repeatable).")
@click.option("--detach", is_flag=True, help="Begin it and do not wait for its end.")
@json_option
@client_options
def reorganize_command(
    *,
    connection: ConnectionFlags,
    namespace: str,
    dry_run: bool,
    target: int,
    clusters: tuple[str, ...],
    detach: bool,
    as_json: bool,
) -> ExitCode:
    """Merge, split, found and rename clusters and move memories between them, where that puts them right.

    The plan is the language model's where it is trusted, else made by likeness; it is checked, and applied whole or
    not at all. Pinned and archived clusters stay as they are. Interrupting the command does not stop the work; the
    same command again follows the work that runs.
    """
    before: dict[str, types_pb2.Cluster] = {}

    async def work(client: AsyncClient) -> pb.Operation:
        before.update({one.cluster_id: one async for one in client.list_clusters(namespace, include_archived=True)})
        begin = client.reorganize(
            namespace,
            dry_run=dry_run,
            target_clusters=target,
            cluster_ids=clusters,
            timeout_s=connection.timeout_s,
        )
        begun = await begun_or_running(client, begin, timeout_s=connection.timeout_s)
        return begun if detach else await follow(client, begun, quiet=as_json)

    def show(ended: pb.Operation) -> None:
        for line in (*_diff(ended.reorganize, before), *_untouched(clusters, before)):
            click.echo(line)

    return told(talk(connection, work, retry=_AT_ONCE), detach=detach, as_json=as_json, show=show)


def _diff(result: pb.ReorganizeResult, before: Mapping[str, types_pb2.Cluster]) -> Iterator[str]:
    """Yield a plan as lines: what is there now behind a minus, what comes of it behind a plus."""
    if not result.steps:
        yield f"nothing to do: {result.clusters_before:,} clusters stay as they are"
        if result.target_missed:
            yield f"target: {one_line(result.target_missed)}"
        return
    moved = f"{result.memories_moved:,} memories {'would move' if result.dry_run else 'moved'}"
    decider = enum_word(types_pb2.RoutingDecider.Name, result.planned_by)
    planner = {"slm": "the language model", "vector": "likeness"}.get(decider, decider)
    counts = f"{result.clusters_before:,} clusters before, {result.clusters_after:,} after"
    yield f"{moved}; {counts}; planned by {planner}"
    for step in result.steps:
        yield ""
        yield f"{_WORDS.get(step.kind, str(step.kind))}: {one_line(step.reason)}"
        yield from _step(step, before)
    if result.target_missed:
        yield ""
        yield f"target: {one_line(result.target_missed)}"
    if result.dry_run:
        yield ""
        yield "nothing was changed (--dry-run)"


def _untouched(asked: Sequence[str], before: Mapping[str, types_pb2.Cluster]) -> Iterator[str]:
    """Yield a line for each cluster that was asked for and that no re-organization touches."""
    for number in asked:
        known = before.get(number)
        if known is not None and known.pinned:
            yield f"{_named(number, known.title)} is pinned and stays as it is (`clag clusters unpin`)"
        elif known is not None and known.state == types_pb2.CLUSTER_STATE_ARCHIVED:
            yield f"{_named(number, known.title)} is archived and stays as it is (`clag clusters restore`)"


def _step(step: pb.PlanStep, before: Mapping[str, types_pb2.Cluster]) -> Iterator[str]:
    sources = [*step.from_cluster_ids]
    if step.kind == pb.PLAN_STEP_KIND_MERGE:
        sources.insert(0, step.to_cluster_id)
    for number in sources:
        known = before.get(number)
        title = known.title if known is not None else step.old_title
        yield f"  - {_named(number, title)}{f' ({known.memory_count:,} memories)' if known is not None else ''}"
    count = step.memories
    if step.kind == pb.PLAN_STEP_KIND_MERGE and step.to_cluster_id in before:
        count += before[step.to_cluster_id].memory_count
    moved = "" if step.kind == pb.PLAN_STEP_KIND_RENAME else f" ({count:,} memories)"
    if step.kind == pb.PLAN_STEP_KIND_REASSIGN:
        moved = f" (+{count:,} memories)"
    yield f"  + {_named(step.to_cluster_id, step.new_title)}{moved}"


def _named(cluster_id: str, title: str) -> str:
    shown = f' "{shorten(title, _TITLE_CHARS)}"' if title else ""
    return f"{one_line(cluster_id) or 'new'}{shown}"
