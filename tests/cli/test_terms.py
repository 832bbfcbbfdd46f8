"""The contract's names and rules in the terms of the command line."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from clag.v1 import admin_service_pb2, cluster_service_pb2, memory_service_pb2
from clag_client import FieldViolation
from google.protobuf.descriptor import Descriptor

from clag_server.cli import terms
from clag_server.cli.main import cli
from clag_server.cli.terms import key_of, retold
from clag_server.contract.patterns import in_words

PROTO = Path(__file__).parents[2] / "proto"


def test_every_pattern_of_the_contract_is_told_in_words() -> None:
    sources = "".join(path.read_text("utf-8") for path in PROTO.rglob("*.proto"))
    patterns = set(re.findall(r'pattern\s*[:=]\s*"([^"]*)"', sources))
    assert patterns
    for pattern in patterns:
        assert in_words(f"does not match regex pattern `{pattern}`").startswith("must be ")


def test_an_unknown_pattern_stays_as_the_server_says_it() -> None:
    told = "does not match regex pattern `^x$`"
    assert in_words(told) == told


def test_fields_of_a_memory_have_the_names_of_the_line() -> None:
    names = {
        "memory_id": "id",
        "session_id": "session",
        "event_time": "time",
        "expire_time.nanos": "expires.nanos",
        "tags[2]": "tags[2]",
        'attributes["memory_id"]': 'attributes["memory_id"]',
        'attributes["a"].string_value': 'attributes["a"]',
        'attributes["a"].string_list.values[3]': 'attributes["a"][3]',
        "": "",
    }
    assert {path: key_of(path) for path in names} == names


def test_a_refusal_names_flags_and_no_field_twice() -> None:
    rule = "does not match regex pattern `^[a-z0-9][a-z0-9-]{0,62}$`"
    told = "--namespace: must be 1 to 63 of a-z 0-9 and -, the first no -"
    one = FieldViolation("open.namespace", rule)
    assert retold(f"open.namespace: {rule}", [one]) == told
    assert retold("wrong", [one]) == f"wrong; {told}"
    assert retold("", [one]) == told


def parsed(arguments: list[str]) -> click.Context:
    """The context of a command as its caller typed it, before it runs."""
    command: click.Command = cli
    name = "clag"
    while isinstance(command, click.Group):
        below = command.get_command(click.Context(command), arguments[0]) if arguments else None
        if below is None:
            break
        name, *arguments = arguments
        command = below
    return command.make_context(name, arguments)


@pytest.mark.parametrize(
    ("typed", "field", "called"),
    [
        ("answer why", "retrieve.query", "the question"),
        ("answer why", "retrieve.query.text", "the question"),
        ("answer why", "retrieve.namespace", "--namespace"),
        ("answer why", "retrieve.context_tokens", "--context-tokens"),
        ("answer why", "retrieve.max_memories", "--memories"),
        ("answer why", "max_tokens", "--max-tokens"),
        ("answer why", "instructions", "--how"),
        ("answer why", "retrieve.slm_use", "--slm"),
        ("retrieve why", "query.text", "the question"),
        ("retrieve why", "session_id", "--session"),
        ("retrieve why", "task_hint", "--task"),
        ("retrieve why", "max_clusters", "--clusters"),
        ("retrieve why", "max_memories", "--memories"),
        ("memory m1", "memory_id", "MEMORY_ID"),
        ("delete m1", "memory_id", "MEMORY_IDS"),
        ("update m1", "memory.session_id", "--session"),
        ("update m1", "memory.event_time", "--time"),
        ("update m1", "memory.expire_time", "--expires"),
        ("update m1 --tag a --tag b", "memory.tags[1]", '--tag "b"'),
        ("update m1 --attribute a=b", 'memory.attributes["a"].string_value', '--attribute "a"'),
        ("memories --session s --tag a --tag b", "filter.all.filters[1].comparison.value.string_list.values[1]",
         '--tag "b"'),
        ("delete --tag a --since 2026-01-01", "filter.all.filters[1].comparison.time_value", "--since"),
        ("export --out x --before 2026-01-01", "filter.all.filters[0].comparison.time_value.nanos", "--before"),
        ("memories", "filter.all.filters[0].comparison.field", "filter.all.filters[0].comparison.field"),
        ("watch --after x", "start_after.token", "--after"),
        ("ingest -", "open.stream_id", "--stream-id"),
        ("import x", "open.stream_id", "--stream-id"),
        ("import x", "open.namespace", "--namespace"),
        ("clusters merge c1 c2 c3", "source_cluster_ids[1]", 'SOURCE "c3"'),
        ("clusters merge c1 c2", "edit.etag", "--etag"),
        ("clusters split c1", "parts", "--parts"),
        ("clusters move c1 m1 m2", "memory_ids[0]", 'MEMORY_ID "m1"'),
        ("clusters rename c1 it", "cluster.title", "TITLE"),
        ("namespaces set n --purpose x", "namespace", "NAMESPACE"),
        ("namespaces set n --purpose x", "settings.default_time_to_live", "--time-to-live"),
        ("reorganize n --cluster c1 --cluster c2", "cluster_ids[1]", '--cluster "c2"'),
        ("reorganize n", "target_clusters", "--target"),
        ("reindex", "embedding_model", "--embedder"),
        ("operation o", "operation_id", "OPERATION_ID"),
        ("retrieve why", "read.at_least_as_fresh", "read.at_least_as_fresh"),
    ],
)  # fmt: skip
def test_a_refusal_names_what_the_caller_of_the_command_typed(typed: str, field: str, called: str) -> None:
    with parsed(typed.split()):
        assert retold(f"{field}: is wrong", [FieldViolation(field, "is wrong")]) == f"{called}: is wrong"


def test_the_table_of_terms_names_fields_of_the_contract_and_parameters_of_commands() -> None:
    requests = [
        message
        for module in (memory_service_pb2, cluster_service_pb2, admin_service_pb2)
        for message in module.DESCRIPTOR.message_types_by_name.values()
    ]
    parameters = {one.name for command in leaves(cli) for one in command.params}
    for field, names in terms._PARAMETERS.items():
        assert any(has(message, field.split(".")) for message in requests), field
        assert set(names) <= parameters, field


def has(message: Descriptor, names: list[str]) -> bool:
    """Whether a message has a field of this path."""
    field = message.fields_by_name.get(names[0])
    if field is None or len(names) == 1:
        return field is not None
    return field.message_type is not None and has(field.message_type, names[1:])


def leaves(group: click.Group) -> list[click.Command]:
    """All commands below a group."""
    context, found = click.Context(group), list[click.Command]()
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found += [command, *(leaves(command) if isinstance(command, click.Group) else [])]
    return found
