"""`clag memory ID`: everything about one memory, its routing explained."""

from __future__ import annotations

import click
from clag.v1 import types_pb2
from clag_client import AsyncClient
from rich.console import Console
from rich.table import Table

from clag_server.cli.connection import talk
from clag_server.cli.messages import as_json as to_json
from clag_server.cli.options import ConnectionFlags, client_options, json_option, namespace_option
from clag_server.cli.output import console, facts, print_document, table
from clag_server.cli.safe import one_line, visible
from clag_server.cli.words import attribute, enum_word, moment

__all__ = ["NO_SLM", "memory_command"]

NO_SLM = {
    types_pb2.FALLBACK_CAUSE_UNAVAILABLE: "the SLM was away",
    types_pb2.FALLBACK_CAUSE_TIMEOUT: "the SLM did not answer in time",
    types_pb2.FALLBACK_CAUSE_INVALID_OUTPUT: "the SLM's answer was not usable",
    types_pb2.FALLBACK_CAUSE_NOT_A_CANDIDATE: "the SLM named a cluster that was not offered",
    types_pb2.FALLBACK_CAUSE_NOT_TRUSTED: "the competence probe does not trust the SLM with this",
    types_pb2.FALLBACK_CAUSE_DISABLED: "the SLM is switched off",
    types_pb2.FALLBACK_CAUSE_INPUT_REFUSED: "the text does not fit the SLM's window",
    types_pb2.FALLBACK_CAUSE_BUDGET: "the budget of SLM work was used up",
}


@click.command("memory")
@click.argument("memory_id")
@namespace_option
@click.option("--embedding", is_flag=True, help="With --json: include the embedding.")
@json_option
@client_options
def memory_command(
    *, connection: ConnectionFlags, memory_id: str, namespace: str, embedding: bool, as_json: bool
) -> None:
    """Show everything about one memory: text, annotations, links, and why it is in its cluster."""

    async def work(client: AsyncClient) -> types_pb2.Memory:
        return await client.get_memory(namespace, memory_id, include_embedding=embedding and as_json)

    memory = talk(connection, work)
    if as_json:
        print_document(to_json(memory))
        return
    out = console()
    out.print(visible(memory.text, keep="\n\t"), style="bold")
    out.print()
    out.print(facts(_as_given(memory) | _organized(memory)))
    _print_links(out, memory)
    _print_routing(out, memory.routing)


def _as_given(memory: types_pb2.Memory) -> dict[str, str]:
    return {
        "memory": one_line(memory.memory_id),
        "kind": enum_word(types_pb2.MemoryKind.Name, memory.kind),
        "happened": f"{moment(memory.event_time)} UTC",
        "speaker": one_line(memory.speaker),
        "session": one_line(memory.session_id)
        and f"{one_line(memory.session_id)}, position {memory.session_position}",
        "task": one_line(memory.task),
        "importance": f"{memory.importance:.2f}",
        "tags": one_line(", ".join(memory.tags)),
        "attributes": ", ".join(
            f"{one_line(key)}={attribute(memory.attributes[key])}" for key in sorted(memory.attributes)
        ),
        "expires": moment(memory.expire_time) if memory.HasField("expire_time") else "",
        "supersedes": one_line(", ".join(memory.supersedes)),
        "superseded by": one_line(memory.superseded_by),
    }


def _organized(memory: types_pb2.Memory) -> dict[str, str]:
    return {
        "state": " ".join(
            filter(None, (enum_word(types_pb2.MemoryState.Name, memory.state), one_line(memory.state_reason)))
        ),
        "cluster": one_line(memory.cluster_id),
        "episode": one_line(memory.episode_id),
        "context": one_line(memory.context),
        "keywords": one_line(", ".join(memory.keywords)),
        "evolved tags": one_line(", ".join(memory.evolved_tags)),
        "annotated by": enum_word(types_pb2.AnnotationSource.Name, memory.annotated_by),
        "confidence": f"{memory.confidence:.2f}",
        "returned": f"{memory.access_count:,} times" if memory.access_count else "never",
        "stored": f"{moment(memory.create_time)} UTC",
        "changed": f"{moment(memory.update_time)} UTC",
        "etag": one_line(memory.etag),
    }


def _print_links(out: Console, memory: types_pb2.Memory) -> None:
    if not memory.links:
        return
    shown = table("link", "kind", "cosine#", "reason")
    for link in memory.links:
        shown.add_row(
            one_line(link.memory_id),
            enum_word(types_pb2.LinkKind.Name, link.kind),
            f"{link.similarity:.2f}",
            one_line(link.reason),
        )
    out.print(shown)


def _print_routing(out: Console, routing: types_pb2.RoutingDecision) -> None:
    if routing.decided_by == types_pb2.ROUTING_DECIDER_UNSPECIFIED:
        out.print("\nNot routed yet.")
        return
    out.print(f"\n{explained(routing)}")
    if routing.candidates:
        out.print(_candidates(routing))


def explained(routing: types_pb2.RoutingDecision) -> str:
    """Say in a sentence or two who decided, how, and why the SLM's vote counted or not."""
    who = enum_word(types_pb2.RoutingDecider.Name, routing.decided_by)
    parts = [
        f"Routed by {who} at {moment(routing.decide_time)} UTC{', provisionally' if routing.provisional else ''}."
    ]
    if routing.reason:
        parts.append(one_line(routing.reason).rstrip(".") + ".")
    if routing.founded_cluster:
        parts.append("No cluster was near enough: it founded its own.")
    voted = [one for one in routing.candidates if one.HasField("channel_score")]
    if voted:
        best = max(voted, key=lambda one: one.channel_score)
        chosen = next((one for one in routing.candidates if one.chosen), None)
        agrees = (
            "agrees" if chosen is not None and best.cluster_id == chosen.cluster_id else "would have chosen another"
        )
        weight = f"weight {routing.slm_weight:.2f}" if routing.slm_weight else "recorded only, weight 0"
        parts.append(
            f"The SLM's vote: {one_line(best.title) or one_line(best.cluster_id)}; it {agrees} ({weight})."
        )
    elif routing.fallback in NO_SLM:
        parts.append(f"No vote of the SLM: {NO_SLM[routing.fallback]}.")
    return " ".join(parts)


def _candidates(routing: types_pb2.RoutingDecision) -> Table:
    shown = table("", "candidate", "title", "cosine#", "z#", "SLM log p#", "z#", "combined#")
    for one in routing.candidates:
        voted = one.HasField("channel_score")
        shown.add_row(
            "chosen" if one.chosen else "",
            one_line(one.cluster_id),
            one_line(one.title),
            f"{one.cosine:.3f}",
            f"{one.cosine_z:+.2f}",
            f"{one.channel_score:.1f}" if voted else "",
            f"{one.channel_z:+.2f}" if one.HasField("channel_z") else "",
            f"{one.combined:+.2f}",
        )
    return shown
