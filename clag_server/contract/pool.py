"""Private descriptor pools: one whose messages carry the validation rules, one that reads bad UTF-8.

Python's default pool holds one version of each .proto file, and the generated client code, which has
no rules, is already in it. So the classes that the server decodes and validates with come from pools of
its own, built once at import from `clag.v1.binpb`. The schema of the rules comes at run time from the
installed `protovalidate`; no generated module of it is needed.

The *lenient* pool is the same contract with every `string` read as `bytes`: protobuf refuses a message
with ill-formed UTF-8 as a whole, and only a second, lenient reading can say which field it was. Map
fields become repeated entries there, as bytes cannot be map keys; on the wire both are the same.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Final, cast

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    field_mask_pb2,
    message_factory,
    timestamp_pb2,
)
from google.protobuf.descriptor import Descriptor, ServiceDescriptor
from google.protobuf.message import Message
from protovalidate import ViolationPb

PACKAGE: Final = "clag.v1"
_RULE_SET: Final = "clag.v1.binpb"
_WELL_KNOWN: Final = (descriptor_pb2, duration_pb2, field_mask_pb2, timestamp_pb2)
_RULES_FILE: Final = "buf/validate/validate.proto"
_FIELD_RULES: Final = "buf.validate.field"
_IGNORE: Final = "buf.validate.Ignore"
_FIELD_OPTIONS: Final = "google.protobuf.FieldOptions"


def strict_class(full_name: str) -> type[Message]:
    """Return the class of a message, with rules.

    Args:
        full_name: e.g. "clag.v1.MemoryInput".

    Raises:
        KeyError: if the contract has no such message.
    """
    return _message_class(full_name, lenient=False)


def lenient_class(full_name: str) -> type[Message]:
    """Return the class that reads the same bytes with every string as bytes.

    Raises:
        KeyError: if the contract has no such message.
    """
    return _message_class(full_name, lenient=True)


def descriptor(full_name: str) -> Descriptor:
    """Return the descriptor of a message in the strict pool.

    Raises:
        KeyError: if the contract has no such message.
    """
    return _strict_pool().FindMessageTypeByName(full_name)


def service(name: str) -> ServiceDescriptor:
    """Return the descriptor of a service in the strict pool.

    Args:
        name: without the package, e.g. "MemoryService".

    Raises:
        KeyError: if the contract has no such service.
    """
    return _strict_pool().FindServiceByName(f"{PACKAGE}.{name}")


def rule_set() -> bytes:
    """Return the serialized FileDescriptorSet of our files, options included."""
    return files(__package__ or "clag_server.contract").joinpath(_RULE_SET).read_bytes()


@cache
def checked_alone() -> frozenset[str]:
    """Return the fields whose messages the schema leaves to be checked one by one (`IGNORE_ALWAYS`).

    Returns:
        Full names, e.g. "clag.v1.IngestBatch.items".
    """
    pool = _strict_pool()
    # The default FieldOptions class does not know the extension of this pool; the pool's own does.
    options_class = message_factory.GetMessageClass(pool.FindMessageTypeByName(_FIELD_OPTIONS))
    rules_extension = pool.FindExtensionByName(_FIELD_RULES)
    ignore_always = pool.FindEnumTypeByName(_IGNORE).values_by_name["IGNORE_ALWAYS"].number
    found = set()
    for file in _own_files():
        for message in file.message_type:
            for field in message.field:
                options = options_class.FromString(field.options.SerializeToString())
                rules = cast("Any", options).Extensions[rules_extension]
                if ignore_always in (rules.ignore, rules.repeated.items.ignore):
                    found.add(f"{PACKAGE}.{message.name}.{field.name}")
    return frozenset(found)


@cache
def _message_class(full_name: str, *, lenient: bool) -> type[Message]:
    pool = _lenient_pool() if lenient else _strict_pool()
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name))


@cache
def _strict_pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for module in _WELL_KNOWN:
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(ViolationPb.desc().file.proto.to_binary())
    for file in _own_files():
        pool.AddSerializedFile(file.SerializeToString())
    return pool


@cache
def _lenient_pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for module in _WELL_KNOWN:
        if module is descriptor_pb2:
            continue  # only the options need it, and they are dropped here
        file = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        pool.Add(_with_bytes(file))
    for file in _own_files():
        pool.Add(_with_bytes(file))
    return pool


def _own_files() -> list[descriptor_pb2.FileDescriptorProto]:
    return list(descriptor_pb2.FileDescriptorSet.FromString(rule_set()).file)


def _with_bytes(file: descriptor_pb2.FileDescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    kept = [name for name in file.dependency if name != _RULES_FILE]
    file.ClearField("dependency")
    file.dependency.extend(kept)
    file.ClearField("options")
    file.ClearField("service")
    for message in file.message_type:
        _strings_to_bytes(message)
    return file


def _strings_to_bytes(message: descriptor_pb2.DescriptorProto) -> None:
    message.ClearField("options")
    for oneof in message.oneof_decl:
        oneof.ClearField("options")
    for field in message.field:
        field.ClearField("options")
        if field.type == descriptor_pb2.FieldDescriptorProto.TYPE_STRING:
            field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
    for nested in message.nested_type:
        _strings_to_bytes(nested)
