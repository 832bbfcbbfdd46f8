"""`clag`: finds the command, and turns every way it can end into an exit code and at most one line of error.

Commands are imported when they run: `clag --help` answers without gRPC, protobuf or the settings.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Sequence
from typing import Final

import click

import clag_server
from clag_server.cli.errors import CliError, ExitCode
from clag_server.cli.output import error_line
from clag_server.cli.streams import discard_output, prepare_streams

__all__ = ["cli", "main"]

_COMMANDS: Final = {
    "serve": ("clag_server.cli.serve", "Run the memory server."),
    "ingest": ("clag_server.cli.ingest", "Store memories from a JSON Lines file or a pipe."),
    "retrieve": ("clag_server.cli.retrieve", "Ask a question and see how it is answered."),
    "answer": ("clag_server.cli.answer", "Let the language model answer a question from the memories."),
    "clusters": ("clag_server.cli.clusters", "List the clusters of a namespace."),
    "cluster": ("clag_server.cli.clusters", "Show one cluster."),
    "memories": ("clag_server.cli.memories", "List memories."),
    "memory": ("clag_server.cli.memory", "Show everything about one memory."),
    "update": ("clag_server.cli.update", "Change fields of one memory."),
    "delete": ("clag_server.cli.memories", "Delete memories by id or by what they have in common."),
    "namespaces": ("clag_server.cli.namespaces", "List, create, show, set or delete namespaces."),
    "reorganize": ("clag_server.cli.reorganize", "Re-organize the clusters of a namespace, or show the plan."),
    "reindex": ("clag_server.cli.reindex", "Rebuild a vector index, or embed a namespace again."),
    "probe": ("clag_server.cli.probe", "Examine the language model and show what it may do."),
    "operations": ("clag_server.cli.operations", "List long-running operations."),
    "operation": ("clag_server.cli.operations", "Show, follow or cancel one operation."),
    "watch": ("clag_server.cli.watch", "Show changes of a namespace as they happen."),
    "export": ("clag_server.cli.export", "Write a namespace to a file."),
    "import": ("clag_server.cli.import_", "Load an exported file, of this system or another."),
    "backup": ("clag_server.cli.backup", "Copy the system of record while a server runs."),
    "restore": ("clag_server.cli.backup", "Put a backup into an empty data directory."),
    "status": ("clag_server.cli.status", "Health, models, index, backlog and counts of a running server."),
    "config": ("clag_server.cli.config", "Show the effective settings and where each came from."),
    "models": ("clag_server.cli.models", "List, fetch or verify the models."),
    "bench-model": ("clag_server.cli.bench_model", "Measure a language model and say what to set for it."),
    "version": ("clag_server.cli.version", "Show the version."),
}
"""Module and one-line help of each command; the module has it under the command's name with `_command`."""

_EPILOG: Final = """\b
Exit codes: 0 ok; 1 some items rejected, or not found; 2 usage or wrong settings;
3 server unreachable or refused, or data directory, socket or port in use;
4 server error; 5 model missing; 6 refused as things are (exists, changed
meanwhile, other embedder); 130 interrupted.
"""


class _LazyGroup(click.Group):
    """A group that knows its commands' names and imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(_COMMANDS[cmd_name][0])
        command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(clag_server.__version__, prog_name="clag", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="On an error, show the traceback too.")
def cli(*, debug: bool) -> None:
    """CLAG: a memory for small language model agents, organized in clusters, served over gRPC."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `clag` and exit the process.

    Args:
        arguments: Of the command line, without the program's name; the process's own by default.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    prepare_streams()
    sys.exit(_run(given, debug="--debug" in given))


def _run(arguments: list[str], *, debug: bool) -> int:
    try:
        result = cli.main(arguments, prog_name="clag", standalone_mode=False)
        sys.stdout.flush()
    except CliError as error:
        _tell(error.message, debug=debug)
        _flush_or_discard()
        return error.code
    except click.exceptions.NoArgsIsHelpError:
        return _run([*arguments, "--help"], debug=debug)  # a question, not an error
    except click.UsageError as error:
        where = f' (see "{error.ctx.command_path} --help")' if error.ctx else ""
        _tell(f"{error.format_message()}{where}", debug=debug)
        return ExitCode.USAGE
    except click.ClickException as error:
        _tell(error.format_message(), debug=debug)
        return ExitCode.USAGE
    except (KeyboardInterrupt, click.Abort):
        _tell("interrupted", debug=False)
        return ExitCode.INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # The reader (such as `head`) has what it wanted; click makes a SystemExit of that, and only of that.
        discard_output()
        return ExitCode.OK
    except UnicodeEncodeError as error:
        # An argument that is no UTF-8 arrives with lone surrogates; no message can carry it.
        _tell(f"an argument is not well-formed UTF-8: {error.object!r}", debug=debug)
        return ExitCode.USAGE
    except Exception as error:  # noqa: BLE001  # the last resort: a fault of ours is told in one line, and is an exit code
        hint = "" if debug else '; run "clag --debug ..." for the traceback'
        _tell(f"a fault in clag itself: {type(error).__name__}: {error}{hint}", debug=debug)
        return ExitCode.SERVER
    return result if isinstance(result, int) else ExitCode.OK


def _flush_or_discard() -> None:
    """Write out what came before an error; when that was the output's own, let the rest go."""
    try:
        sys.stdout.flush()
    except (CliError, OSError):
        discard_output()


def _tell(message: str, *, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    error_line(" ".join(message.split()))
