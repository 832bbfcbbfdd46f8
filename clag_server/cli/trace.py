"""How a retrieval is shown to people: candidate clusters, memories, context, search space, timings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clag.v1 import memory_service_pb2 as pb

from clag_server.cli.memory import NO_SLM
from clag_server.cli.output import table
from clag_server.cli.safe import one_line, shorten, visible
from clag_server.cli.words import date, enum_word, milliseconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["print_trace", "search_space"]

_TITLE_CHARS = 32
_REASON_CHARS = 70
_PRUNED_SHOWN = 10


def print_trace(out: Console, answer: pb.GetContextResponse, *, nothing: str, parts: bool = False) -> None:
    """Print a retrieval.

    Args:
        out: Where to.
        answer: All stages of it.
        nothing: What to say when there are no memories in it.
        parts: Whether to say what each score is made of.
    """
    out.print(_clusters(answer.clusters))
    hidden = sum(not one.selected for one in answer.clusters.candidates) - _PRUNED_SHOWN
    if hidden > 0:
        out.print(f"... and {hidden} more pruned clusters (all with --json)", style="dim")
    if answer.clusters.fallback in NO_SLM:
        out.print(f"No vote of the SLM: {NO_SLM[answer.clusters.fallback]}.", style="dim")
    if answer.memories.hits:
        out.print(_hits(answer.memories, parts=parts))
    else:
        out.print(nothing)
    told: set[frozenset[str]] = set()
    for hit in answer.memories.hits:
        for conflict in hit.conflicts:
            pair = frozenset((hit.memory.memory_id, conflict.memory_id))
            if pair in told:
                continue  # the other one is a hit too
            told.add(pair)
            other = f"{one_line(hit.memory.memory_id)} and {one_line(conflict.memory_id)} cannot both hold"
            reason = one_line(conflict.reason).rstrip(".")
            out.print(f"{other}: {reason}. {one_line(conflict.clarifying_question)}".rstrip(), style="yellow")
    if answer.HasField("context"):
        context = answer.context
        cut = f", {context.left_out} memories left out" if context.left_out else ""
        out.print(f"\nContext ({context.tokens:,} tokens{cut})", style="bold")
        out.print(visible(context.text, keep="\n"))
    out.print(f"\n{search_space(answer.done.search_space)}")
    out.print(_timings(answer.done.timings))
    for one in answer.done.degraded:
        out.print(
            f"Left out: {enum_word(pb.DegradationKind.Name, one.kind)}. {one_line(one.detail)}", style="yellow"
        )


def search_space(space: pb.SearchSpace) -> str:
    """Say how much of the namespace was looked at."""
    picked, total = space.memories_in_picked_episodes, space.memories_total
    share = f" ({picked / total:.0%})" if total else ""
    return (
        f"Search space: {total:,} -> {picked:,} memories{share} in {space.episodes_picked:,} of "
        f"{space.episodes_total:,} episodes, {space.clusters_selected:,} of {space.clusters_total:,} clusters; "
        f"{space.memories_added_by_net:,} added by the net, {space.memories_ranked:,} ranked"
    )


def _clusters(selection: pb.ClusterSelection) -> Table:
    voted = any(one.HasField("slm_vote") for one in selection.candidates)
    shown = table("", "cluster", "title", "score#", *(("SLM#",) if voted else ()), "picked#", "of#", "why")
    pruned = 0
    for one in selection.candidates:
        pruned += not one.selected
        if pruned > _PRUNED_SHOWN and not one.selected:
            continue
        shown.add_row(
            "selected" if one.selected else "pruned",
            one_line(one.cluster_id),
            shorten(one.title, _TITLE_CHARS),
            f"{one.score:.3f}",
            *((f"{one.slm_vote:+.2f}" if one.HasField("slm_vote") else "",) if voted else ()),
            f"{one.memories_picked:,}",
            f"{one.memory_count:,}",
            shorten(one.reason, _REASON_CHARS),
            style=None if one.selected else "dim",
        )
    return shown


def _hits(memories: pb.MemoryHits, *, parts: bool) -> Table:
    shown = table("#", "score#", *(("of",) if parts else ()), "date", "speaker", "text", "id")
    for hit in memories.hits:
        memory = hit.memory
        replaced = f" [replaced by {memory.superseded_by}]" if memory.superseded_by else ""
        shown.add_row(
            str(hit.rank),
            f"{hit.score:.3f}",
            *((", ".join(f"{one_line(one.name)} {one.value:.2f}" for one in hit.score_parts),) if parts else ()),
            date(memory.event_time),
            one_line(memory.speaker),
            one_line(memory.text + replaced),
            one_line(memory.memory_id),
        )
    return shown


def _timings(timings: pb.RetrieveTimings) -> str:
    parts = (
        ("queue", timings.queue_time),
        ("embed", timings.embed_time),
        ("select", timings.select_time),
        ("SLM", timings.slm_time),
        ("rank", timings.rank_time),
        ("context", timings.context_time),
    )
    spent = ", ".join(f"{name} {milliseconds(time)}" for name, time in parts if time.seconds or time.nanos)
    return (
        f"Time: {milliseconds(timings.total_time)} ({spent})"
        if spent
        else f"Time: {milliseconds(timings.total_time)}"
    )
