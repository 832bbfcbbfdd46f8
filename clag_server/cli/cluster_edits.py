"""`clag clusters merge`, `split`, `move`, `archive`, `restore`, `rename`, `pin`, `unpin` and `history`."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click
from clag.v1 import cluster_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient, EditOptions, RetryPolicy

from clag_server.cli.connection import talk
from clag_server.cli.messages import as_json as to_json
from clag_server.cli.options import ConnectionFlags, client_options, json_option, namespace_option
from clag_server.cli.output import console, print_document, print_lines, table
from clag_server.cli.safe import one_line, shorten
from clag_server.cli.words import enum_word, moment

__all__ = ["EDITS"]

_T = TypeVar("_T")
_TITLE_CHARS: Final = 60

_AT_ONCE: Final = RetryPolicy(reconnect_budget_s=0.0)
"""Whoever types a command sees that no server answers, and need not wait for one."""


@dataclass(frozen=True, slots=True)
class _Edit:
    """What all edits have in common: where, and how."""

    connection: ConnectionFlags
    namespace: str
    dry_run: bool
    etag: str
    as_json: bool

    def make(self, call: Callable[[AsyncClient, EditOptions], Awaitable[_T]]) -> _T:
        """Make the call. Raises CliError."""
        options = EditOptions(validate_only=self.dry_run, etag=self.etag, timeout_s=self.connection.timeout_s)

        async def work(client: AsyncClient) -> _T:
            return await call(client, options)

        return talk(self.connection, work, retry=_AT_ONCE)

    def tell(self, answer: Any, sentence: str) -> None:
        """Print the answer: as it is for programs, as a sentence for people."""
        if self.as_json:
            print_document(to_json(answer))
        else:
            click.echo(f"would do: {sentence}" if self.dry_run else sentence)


def _edit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags of edits; the command gets `edit`."""

    @functools.wraps(command)
    def with_edit(
        *, connection: ConnectionFlags, namespace: str, dry_run: bool, etag: str, as_json: bool, **others: Any
    ) -> object:
        return command(edit=_Edit(connection, namespace, dry_run, etag, as_json), **others)

    made = json_option(client_options(with_edit))
    made = click.option("--etag", default="", help="Only when the cluster has this etag still.")(made)
    made = click.option("--dry-run", is_flag=True, help="Only check it and show what would come of it.")(made)
    return namespace_option(made)


@click.command("merge")
@_edit_options
@click.argument("target")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
def _merge(*, edit: _Edit, target: str, sources: tuple[str, ...]) -> None:
    """Move all memories of the sources into the target and remove the sources."""
    answer = edit.make(lambda client, options: client.merge_clusters(edit.namespace, target, sources, **options))
    cluster = answer.cluster
    edit.tell(answer, f"{answer.moved:,} memories moved; {_named(cluster)} has {cluster.memory_count:,}")


@click.command("split")
@_edit_options
@click.argument("cluster_id")
@click.option("--parts", type=click.IntRange(2, 16), default=2, show_default=True, help="Into so many.")
def _split(*, edit: _Edit, cluster_id: str, parts: int) -> None:
    """Split a cluster by likeness; it keeps its id as the largest part."""
    answer = edit.make(lambda client, options: client.split_cluster(edit.namespace, cluster_id, parts, **options))
    told = [f"{_named(cluster)} has {cluster.memory_count:,} memories" for cluster in answer.clusters]
    edit.tell(answer, "; ".join(told))


@click.command("move")
@_edit_options
@click.argument("target")
@click.argument("memory_ids", nargs=-1, required=True, metavar="MEMORY_ID...")
def _move(*, edit: _Edit, target: str, memory_ids: tuple[str, ...]) -> None:
    """Move memories to another cluster; all of them, or none when one does not exist."""
    answer = edit.make(lambda client, options: client.move_memories(edit.namespace, target, memory_ids, **options))
    edit.tell(answer, f"{answer.moved:,} memories moved to {one_line(target)}")


@click.command("archive")
@_edit_options
@click.argument("cluster_id")
def _archive(*, edit: _Edit, cluster_id: str) -> None:
    """Take a cluster out of default retrieval."""
    _set_archived(edit, cluster_id, archived=True)


@click.command("restore")
@_edit_options
@click.argument("cluster_id")
def _restore(*, edit: _Edit, cluster_id: str) -> None:
    """Take an archived cluster back into default retrieval."""
    _set_archived(edit, cluster_id, archived=False)


@click.command("rename")
@_edit_options
@click.argument("cluster_id")
@click.argument("title")
def _rename(*, edit: _Edit, cluster_id: str, title: str) -> None:
    """Give a cluster a title, which stays until it is renamed again."""
    _update(edit, cluster_id, "renamed", title=title)


@click.command("pin")
@_edit_options
@click.argument("cluster_id")
def _pin(*, edit: _Edit, cluster_id: str) -> None:
    """Have the agent leave a cluster as it is when it reorganizes its memory."""
    _update(edit, cluster_id, "pinned", pinned=True)


@click.command("unpin")
@_edit_options
@click.argument("cluster_id")
def _unpin(*, edit: _Edit, cluster_id: str) -> None:
    """Leave a pinned cluster to the agent again."""
    _update(edit, cluster_id, "unpinned", pinned=False)


@click.command("history")
@click.argument("cluster_id")
@namespace_option
@json_option
@client_options
def _history(*, connection: ConnectionFlags, cluster_id: str, namespace: str, as_json: bool) -> None:
    """Show what happened to a cluster, the newest first; also to one that is gone."""

    async def work(client: AsyncClient) -> list[pb.ClusterHistoryEntry]:
        return [entry async for entry in client.cluster_history(namespace, cluster_id, page_size=1000)]

    entries = talk(connection, work)
    if as_json:
        print_lines(to_json(entry) for entry in entries)
        return
    shown = table("time", "event", "memories#", "others", "title", "why")
    for entry in entries:
        titles = [shorten(title, _TITLE_CHARS) for title in (entry.old_title, entry.new_title) if title]
        shown.add_row(
            moment(entry.time),
            enum_word(pb.ClusterEvent.Name, entry.event),
            f"{entry.memories:,}" if entry.memories else "",
            one_line(", ".join(entry.cluster_ids)),
            " -> ".join(titles),
            one_line(entry.reason),
        )
    console().print(shown)


def _set_archived(edit: _Edit, cluster_id: str, *, archived: bool) -> None:
    answer = edit.make(
        lambda client, options: client.archive_cluster(edit.namespace, cluster_id, archived=archived, **options)
    )
    edit.tell(answer, f"{_named(answer.cluster)}: {'archived' if archived else 'restored'}")


def _update(
    edit: _Edit, cluster_id: str, done: str, *, title: str | None = None, pinned: bool | None = None
) -> None:
    answer = edit.make(
        lambda client, options: client.update_cluster(
            edit.namespace, cluster_id, title=title, pinned=pinned, **options
        )
    )
    edit.tell(answer, f"{_named(answer.cluster)}: {done}")


def _named(cluster: types_pb2.Cluster) -> str:
    """A cluster's id and title; in a preview a new one has no id."""
    return f'{one_line(cluster.cluster_id) or "a new cluster"} "{shorten(cluster.title, _TITLE_CHARS)}"'


EDITS: Final[tuple[click.Command, ...]] = (
    _merge, _split, _move, _archive, _restore, _rename, _pin, _unpin, _history,
)  # fmt: skip
"""The subcommands of `clag clusters`."""
