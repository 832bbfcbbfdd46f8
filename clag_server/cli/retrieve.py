"""`clag retrieve "question"`: the answer and the trace of how it was found."""

from __future__ import annotations

from typing import Final

import click
from clag.v1 import admin_service_pb2 as admin_pb
from clag.v1 import memory_service_pb2 as pb
from clag_client import AsyncClient, ClagError, RetrieveOptions

from clag_server.cli.connection import talk
from clag_server.cli.messages import as_json as to_json
from clag_server.cli.options import ConnectionFlags, client_options, json_option, namespace_option
from clag_server.cli.output import console, note, print_document
from clag_server.cli.trace import print_trace

__all__ = ["retrieve_command"]

_FORMATS: Final = {
    "plain": pb.CONTEXT_FORMAT_PLAIN,
    "markdown": pb.CONTEXT_FORMAT_MARKDOWN,
    "chat": pb.CONTEXT_FORMAT_CHAT_MESSAGES,
    "json": pb.CONTEXT_FORMAT_JSON,
}
_SLM: Final = {"auto": pb.SLM_USE_AUTO, "always": pb.SLM_USE_ALWAYS, "never": pb.SLM_USE_NEVER}


@click.command("retrieve")
@click.argument("question")
@namespace_option
@click.option(
    "-k", "--memories", type=click.IntRange(1, 256), default=10, show_default=True, help="At most so many."
)
@click.option(
    "--clusters", type=click.IntRange(0, 64), default=0, help="Select at most so many.  [default: by score]"
)
@click.option(
    "--context-tokens", type=click.IntRange(0, 131_072), default=0, help="Assemble a context of this size."
)
@click.option("--context-format", type=click.Choice(tuple(_FORMATS)), default="plain", show_default=True)
@click.option("--session", default="", help="The session in which the question arises; a hint.")
@click.option("--task", default="", help="What the agent is doing now; a hint.")
@click.option(
    "--slm", type=click.Choice(tuple(_SLM)), default="auto", show_default=True, help="Whether it is asked."
)
@click.option("--global", "everywhere", is_flag=True, help="Rank all memories instead of two stages, to compare.")
@click.option("--superseded", is_flag=True, help="Rank replaced memories like others.")
@click.option("--explain", is_flag=True, help="Say what the score of each memory is made of, too.")
@json_option
@client_options
def retrieve_command(
    *,
    connection: ConnectionFlags,
    question: str,
    namespace: str,
    memories: int,
    clusters: int,
    context_tokens: int,
    context_format: str,
    session: str,
    task: str,
    slm: str,
    everywhere: bool,
    superseded: bool,
    explain: bool,
    as_json: bool,
) -> None:
    """Ask a question; see which clusters were selected or pruned and why, and the memories that were found."""
    options = RetrieveOptions(
        mode=pb.RETRIEVAL_MODE_GLOBAL if everywhere else pb.RETRIEVAL_MODE_TWO_STAGE,
        slm_use=_SLM[slm],
        task_hint=task,
        session_id=session,
        max_clusters=clusters,
        max_memories=memories,
        context_tokens=context_tokens,
        context_format=_FORMATS[context_format],
        include_superseded=superseded,
        explain=True,
    )

    async def work(client: AsyncClient) -> tuple[pb.GetContextResponse, str]:
        answer = pb.GetContextResponse()
        async with client.retrieve(namespace, question, **options) as stages:
            async for stage in stages:
                _add(answer, stage)
        return answer, "" if answer.memories.hits else await _why(client, namespace)

    answer, why = talk(connection, work)
    nothing = f"No memory was found{why}."
    if as_json:
        print_document(to_json(answer))
        if why:
            note(nothing)
    else:
        print_trace(console(), answer, nothing=nothing, parts=explain)


async def _why(client: AsyncClient, namespace: str) -> str:
    """Say what a question does not look at, as the end of a sentence; "" for nothing, or where nobody tells."""
    try:
        stats = await client.stats(namespace)
    except ClagError:  # the answer stands without its explanation
        return ""
    waiting = sum(one.pending for one in stats.backlog if one.stage == admin_pb.STAGE_EMBED)
    if waiting:
        who = "1 memory waits" if waiting == 1 else f"{waiting:,} memories wait"
        return f"; {who} to be embedded, ask again in a moment"
    if stats.archived_clusters:
        who = "1 cluster is" if stats.archived_clusters == 1 else f"{stats.archived_clusters:,} clusters are"
        return f"; {who} archived (`clag clusters --archived`)"
    return ""


def _add(answer: pb.GetContextResponse, stage: pb.RetrieveResponse) -> None:
    """Put a stage in its place; memories may come in several parts."""
    if stage.HasField("clusters"):
        answer.clusters.CopyFrom(stage.clusters)
    elif stage.HasField("memories"):
        answer.memories.hits.extend(stage.memories.hits)
    elif stage.HasField("context"):
        answer.context.CopyFrom(stage.context)
    elif stage.HasField("done"):
        answer.done.CopyFrom(stage.done)
