"""The contract that clients are generated from is the contract, without the rules."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tools.contract_paths import CLIENT_PROTOS, PROTO_DIR, ROOT, tool
from tools.fetch_validate import fetch
from tools.generate import PACKAGE, build, copy_protos, without_rules
from tools.strip_rules import HEADER, strip_rules


@pytest.fixture(scope="module")
def contract() -> FileDescriptorSet:
    """The contract as clients see it, with comments."""
    try:
        fetch()
    except SystemExit as missing:
        pytest.skip(str(missing))
    with tempfile.TemporaryDirectory() as work:
        return without_rules(build(Path(work)))


def compiled(folder: Path, work: Path) -> FileDescriptorSet:
    output = work / "copy.binpb"
    command = [tool("buf"), "build", str(folder), "--as-file-descriptor-set", "-o", str(output)]
    subprocess.run(command, cwd=work, check=True)
    return FileDescriptorSet.FromString(output.read_bytes())


def comments(described: FileDescriptorSet) -> dict[tuple[str, tuple[int, ...]], str]:
    """Comments by file and path; the header of the copy is a detached one."""
    return {
        (file.name, tuple(place.path)): place.leading_comments + place.trailing_comments
        for file in described.file
        if file.name.startswith(PACKAGE)
        for place in file.source_code_info.location
        if place.leading_comments or place.trailing_comments
    }


def descriptors(described: FileDescriptorSet) -> dict[str, bytes]:
    own = {file.name: file for file in described.file if file.name.startswith(PACKAGE)}
    found = {}
    for name, file in own.items():
        file.ClearField("source_code_info")
        for message in file.message_type:  # options without any in them, where all were rules
            _drop_empty_options(message)
        found[name] = file.SerializeToString(deterministic=True)
    return found


def _drop_empty_options(message: object) -> None:
    for one in [message, *message.field, *message.oneof_decl]:  # type: ignore[attr-defined]
        if one.HasField("options") and not one.options.ListFields():
            one.ClearField("options")
    for nested in message.nested_type:  # type: ignore[attr-defined]
        _drop_empty_options(nested)


def test_the_copy_describes_the_same_messages_services_and_comments(
    contract: FileDescriptorSet, tmp_path: Path
) -> None:
    copy = compiled(CLIENT_PROTOS, tmp_path)
    assert comments(copy) == comments(contract)
    assert descriptors(copy) == descriptors(contract)
    assert len(descriptors(copy)) == 4


def test_the_copy_is_what_the_contract_gives_and_formatted(tmp_path: Path) -> None:
    copy_protos(tmp_path)
    fresh = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / PACKAGE).iterdir()}
    kept = {path.name: path.read_text(encoding="utf-8") for path in (CLIENT_PROTOS / PACKAGE).iterdir()}
    assert kept == fresh
    assert set(kept) == {path.name for path in (PROTO_DIR / PACKAGE).glob("*.proto")}
    assert all("buf.validate" not in text and "buf/validate" not in text for text in kept.values())
    done = subprocess.run([tool("buf"), "format", "--exit-code", str(tmp_path)], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_only_rules_are_cut() -> None:
    source = """syntax = "proto3";
import "buf/validate/validate.proto";
import "other.proto";
// Says [(buf.validate.field).required = true] in a comment.
message M {
  option (buf.validate.message).cel = {
    expression: "this.a != '}' && this.b != ';'"
  };
  option deprecated = true;
  // A field.
  string a = 1 [
    (buf.validate.field).string = {pattern: "^[a-z],]$"},
    deprecated = true
  ];
  repeated string b = 2 [(buf.validate.field).repeated = {items: {string: {min_len: 1}}}];
  string c = 3 [json_name = "x"];
}
"""
    assert (
        strip_rules(source)
        == HEADER
        + """syntax = "proto3";
import "other.proto";
// Says [(buf.validate.field).required = true] in a comment.
message M {
  option deprecated = true;
  // A field.
  string a = 1 [deprecated = true];
  repeated string b = 2;
  string c = 3 [json_name = "x"];
}
"""
    )


def test_an_option_that_never_ends_is_an_error() -> None:
    with pytest.raises(ValueError, match="never closed"):
        strip_rules("message M {\n  option (buf.validate.message) = {\n")
