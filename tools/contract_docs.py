"""The reference page of the contract, from the comments in the .proto files.

Comments are the single source: this file only arranges them. Numbers in field paths are those of
google.protobuf.FileDescriptorProto, as SourceCodeInfo.Location.path uses them.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

_MESSAGE, _ENUM, _SERVICE, _SYNTAX = 4, 5, 6, 12  # in FileDescriptorProto
_FIELD, _VALUE, _METHOD = 2, 2, 2  # in DescriptorProto, EnumDescriptorProto, ServiceDescriptorProto

_ORDER = ("memory_service", "cluster_service", "admin_service", "types")
_HEAD = """# The contract

<!-- Generated from proto/clag/v1 by tools/generate.py. Do not edit. -->

Package `clag.v1`: three services, additive only from one release to the next. The `.proto` files
in `proto/clag/v1` are the contract; this page is their comments.
"""

Path = tuple[int, ...]


def reference(described: FileDescriptorSet) -> str:
    """Arrange the comments of the contract as one Markdown page.

    Args:
        described: our files, with source information.

    Returns:
        The page, ending in one newline.
    """
    files = {file.name.rsplit("/", 1)[-1].removesuffix(".proto"): file for file in described.file}
    names = [name for name in _ORDER if name in files] + sorted(set(files) - set(_ORDER))
    lines = [_HEAD.rstrip(), ""]
    lines += [f"- [{name}.proto](#{name}proto)" for name in names]
    for name in names:
        lines += ["", *_File(files[name]).lines(name)]
    return "\n".join(lines) + "\n"


class _File:
    """Renders one file."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._comments: dict[Path, str] = {
            tuple(place.path): place.leading_comments or place.trailing_comments
            for place in file.source_code_info.location
        }

    def lines(self, name: str) -> Iterator[str]:
        yield f"## {name}.proto"
        yield ""
        yield from self._text((_SYNTAX,))
        for index, service in enumerate(self._file.service):
            yield from self._service(service, (_SERVICE, index))
        for index, message in enumerate(self._file.message_type):
            yield from self._message(message, (_MESSAGE, index))
        for index, enum in enumerate(self._file.enum_type):
            yield from self._enum(enum, (_ENUM, index))

    def _text(self, path: Path) -> list[str]:
        return [line.removeprefix(" ").rstrip() for line in self._comments.get(path, "").splitlines()]

    def _cell(self, path: Path) -> str:
        return " ".join(" ".join(self._text(path)).split()).replace("|", "\\|")

    def _service(self, service: ServiceDescriptorProto, path: Path) -> Iterator[str]:
        yield from ("", f"### {service.name}", "", *self._text(path))
        for index, method in enumerate(service.method):
            wanted = _streamed(method.input_type, many=method.client_streaming)
            given = _streamed(method.output_type, many=method.server_streaming)
            yield from ("", f"#### {service.name}.{method.name}", "", f"{wanted} → {given}", "")
            yield from self._text((*path, _METHOD, index))

    def _message(self, message: DescriptorProto, path: Path) -> Iterator[str]:
        yield from ("", f"### {message.name}", "", *self._text(path))
        if not message.field:
            return
        yield from ("", "| field | number | type | meaning |", "|---|---|---|---|")
        for index, field in enumerate(message.field):
            meaning = self._cell((*path, _FIELD, index))
            if field.HasField("oneof_index") and not field.proto3_optional:
                meaning = f"(one of `{message.oneof_decl[field.oneof_index].name}`) {meaning}"
            yield f"| `{field.name}` | {field.number} | {_type(field, message)} | {meaning} |"

    def _enum(self, enum: EnumDescriptorProto, path: Path) -> Iterator[str]:
        yield from ("", f"### {enum.name}", "", *self._text(path))
        yield from ("", "| value | number | meaning |", "|---|---|---|")
        for index, value in enumerate(enum.value):
            yield f"| `{value.name}` | {value.number} | {self._cell((*path, _VALUE, index))} |"


def _streamed(type_name: str, *, many: bool) -> str:
    return f"stream of {_linked(type_name)}" if many else _linked(type_name)


def _linked(type_name: str) -> str:
    name = type_name.removeprefix(".")
    if not name.startswith("clag.v1."):
        return f"`{name}`"
    short = name.removeprefix("clag.v1.")
    return f"[{short}](#{short.lower()})"


def _type(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    """Name a field's type as the .proto file writes it."""
    for nested in message.nested_type:
        if nested.options.map_entry and field.type_name.endswith(f".{message.name}.{nested.name}"):
            key, value = nested.field
            return f"map of {_scalar(key)} to {_scalar(value)}"
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {_scalar(field)}"
    return f"optional {_scalar(field)}" if field.proto3_optional else _scalar(field)


def _scalar(field: FieldDescriptorProto) -> str:
    if field.type_name:
        return _linked(field.type_name)
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
