"""`clag answer "question"`: the language model's answer as it is written, and the memories that it was given."""

from __future__ import annotations

import sys
from typing import Final

import click
from clag.v1 import memory_service_pb2 as pb
from clag_client import AsyncClient, RetrieveOptions

from clag_server.cli.connection import talk, went_away
from clag_server.cli.errors import CliError, ExitCode
from clag_server.cli.messages import as_json as to_json
from clag_server.cli.options import ConnectionFlags, client_options, json_option, namespace_option
from clag_server.cli.output import console, note, print_document
from clag_server.cli.safe import one_line, visible
from clag_server.cli.words import date, enum_word, milliseconds

__all__ = ["answer_command"]

_SLM: Final = {"auto": pb.SLM_USE_AUTO, "always": pb.SLM_USE_ALWAYS, "never": pb.SLM_USE_NEVER}

_ENDS: Final = {
    pb.ANSWER_END_MAX_TOKENS: "The answer was cut at its longest; --max-tokens allows more.",
    pb.ANSWER_END_NO_EVIDENCE: "No memory that was found bears on the question, so there is no answer "
    "(--without-evidence asks for one all the same).",
    pb.ANSWER_END_DEADLINE: "The time was up before the answer was done; --timeout allows more.",
}


@click.command("answer")
@click.argument("question")
@namespace_option
@click.option(
    "-k", "--memories", type=click.IntRange(1, 256), default=10, show_default=True, help="Find at most so many."
)
@click.option(
    "--context-tokens",
    type=click.IntRange(1, 131_072),
    default=None,
    help="What the model is given, at most.  [default: 1024]",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1, 4096),
    default=None,
    help="Length of the answer, at most.  [default: 256]",
)
@click.option("--how", "instructions", default="", help='How to answer, such as "in one word".')
@click.option("--without-evidence", is_flag=True, help="Answer even when nothing relevant is found.")
@click.option(
    "--slm",
    type=click.Choice(tuple(_SLM)),
    default="auto",
    show_default=True,
    help="Whether it takes part in finding, too.",
)
@json_option
@client_options
def answer_command(
    *,
    connection: ConnectionFlags,
    question: str,
    namespace: str,
    memories: int,
    context_tokens: int | None,
    max_tokens: int | None,
    instructions: str,
    without_evidence: bool,
    slm: str,
    as_json: bool,
) -> int:
    """Let the server's language model answer a question from the memories; ends with 1 when there is no answer."""
    options = RetrieveOptions(slm_use=_SLM[slm], max_memories=memories, context_tokens=context_tokens or 0)

    heard = _Heard(quiet=as_json)

    async def work(client: AsyncClient) -> None:
        async with client.answer(
            namespace,
            question,
            max_tokens=max_tokens or 0,
            instructions=instructions,
            answer_without_evidence=without_evidence,
            timeout_s=connection.timeout_s,
            **options,
        ) as frames:
            async for frame in frames:
                heard.add(frame)

    try:
        talk(connection, work)
    except CliError as error:
        told = "the server went away" if heard.begun and went_away(error) else error.message
        if heard.end_line():
            told = f"the answer is incomplete: {told}"
        raise CliError(told, error.code) from error
    except KeyboardInterrupt:
        told = "interrupted: the answer is incomplete" if heard.end_line() else "interrupted"
        raise CliError(told, ExitCode.INTERRUPTED) from None
    done = heard.done
    heard.end_line()
    if done is None:
        raise CliError("the answer is incomplete: the server ended it without saying why", ExitCode.SERVER)
    text = heard.text
    if as_json:
        print_document({"answer": text, "context": to_json(heard.context), "done": to_json(done)})
    else:
        _tell(text, heard.hits, done)
    answered = bool(text.strip()) and done.end != pb.ANSWER_END_NO_EVIDENCE
    return ExitCode.OK if answered else ExitCode.PARTIAL


class _Heard:
    """What has come of an answer. Its text is printed as it comes: it is slow enough to be read as it is written.

    Args:
        quiet: Print nothing.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self.text = ""
        self.context = pb.AssembledContext()
        self.hits: list[pb.MemoryHit] = []
        self.done: pb.AnswerDone | None = None
        self.begun = False
        """Whether anything came."""

    def add(self, frame: pb.AnswerResponse) -> None:
        """Take the next frame."""
        self.begun = True
        match frame.WhichOneof("frame"):
            case "memories":
                self.hits.extend(frame.memories.hits)
            case "context":
                self.context = frame.context
            case "delta":
                self.text += frame.delta.text
                if not self._quiet:
                    sys.stdout.write(visible(frame.delta.text, keep="\n"))
                    sys.stdout.flush()
            case "done":
                self.done = frame.done

    def end_line(self) -> bool:
        """End the line of the text, so that nothing else stands on it; tell whether there is text."""
        if self.text and not self._quiet and not self.text.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()
        return bool(self.text)


def _tell(text: str, hits: list[pb.MemoryHit], done: pb.AnswerDone) -> None:
    """Print what follows the answer: why it ended, what it rests on, what it cost."""
    if done.end in _ENDS:
        note(_ENDS[done.end])
    elif not text.strip():
        note("The language model wrote nothing.")
    out = console()
    given = set(done.memory_ids)
    if given:
        out.print("\nIt was given:", style="dim")
    for hit in hits:
        if hit.memory.memory_id in given:
            who = f"{one_line(hit.memory.speaker)}: " if hit.memory.speaker else ""
            line = f"  {one_line(hit.memory.memory_id)}  {date(hit.memory.event_time)}  {who}"
            out.print(f"{line}{one_line(hit.memory.text)}", style="dim")
    for one in done.retrieval.degraded:
        out.print(
            f"Left out: {enum_word(pb.DegradationKind.Name, one.kind)}. {one_line(one.detail)}", style="yellow"
        )
    if done.prompt_tokens:
        took, found = milliseconds(done.generate_time), milliseconds(done.retrieval.timings.total_time)
        tokens = f"{done.prompt_tokens:,} tokens in, {done.answer_tokens:,} out"
        out.print(f"{tokens}, {took} to write; found in {found}", style="dim")
