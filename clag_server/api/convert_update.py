"""An update of a memory, from its mask: which fields change, and the memory as it will be, checked by the rules."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2

from clag_server.api.convert_memory import new_memory_from
from clag_server.api.convert_values import attribute_to, time_to
from clag_server.contract.codec import violations
from clag_server.contract.pool import strict_class
from clag_server.contract.violations import shown
from clag_server.memory.editing import MemoryChange
from clag_server.types.errors import FieldViolation, InvalidField
from clag_server.types.memory import Memory, NewMemory

__all__ = ["change_from"]

_FIELDS: Final = {
    "text": "text",
    "kind": "kind",
    "task": "task",
    "speaker": "speaker",
    "session_id": "session_id",
    "tags": "tags",
    "attributes": "attributes",
    "importance": "importance",
    "event_time": "event_time_ns",
    "expire_time": "expire_time_ns",
    "supersedes": "supersedes",
    "embedding": "embedding",
}
"""Fields of `MemoryInput` that an update can change, and what they are called in `NewMemory`."""

_ATTRIBUTE: Final = "attributes."
_MASK: Final = "update_mask"
_INPUT: Final = "clag.v1.MemoryInput"


def change_from(request: pb.UpdateMemoryRequest, *, dim: int | None) -> MemoryChange:
    """Convert a request.

    Args:
        request: It passed the schema's rules, which leave its memory and its mask's paths alone.
        dim: Length of the namespace's vectors, None when it is not known yet.

    Raises:
        InvalidField: a path of the mask names nothing that can change.
    """
    paths = tuple(request.update_mask.paths)
    wrong = list(_violations(paths))
    if wrong:
        raise InvalidField(*wrong)

    def revise(current: Memory) -> NewMemory:
        message = _as_input(current)
        for path in sorted(paths):  # a single attribute comes after all of them
            _take(message, request.memory, path)
        broken = violations(message, prefix="memory.")
        if broken:
            raise InvalidField(*broken)
        return new_memory_from(message, dim=dim, prefix="memory.")

    return MemoryChange(
        fields=frozenset(_FIELDS[path.partition(".")[0]] for path in paths),
        revise=revise,
        etag=request.etag,
        request_id=request.request_id,
        digest=hashlib.sha256(request.SerializeToString(deterministic=True)).digest(),
    )


def _violations(paths: Iterable[str]) -> Iterable[FieldViolation]:
    count = 0
    for index, path in enumerate(paths):
        count += 1
        if path == "memory_id":
            yield FieldViolation(f"{_MASK}.paths[{index}]", "memory_id cannot change")
        elif path not in _FIELDS and not (path.startswith(_ATTRIBUTE) and len(path) > len(_ATTRIBUTE)):
            what = (
                f'"{shown(path)}" is no field of a memory that can change; there are {", ".join(sorted(_FIELDS))}'
            )
            yield FieldViolation(f"{_MASK}.paths[{index}]", f"{what} and attributes.KEY")
    if not count:
        yield FieldViolation(f"{_MASK}.paths", "names no field; say what changes")


def _as_input(memory: Memory) -> types_pb2.MemoryInput:
    """Return a stored memory as a client would send it; the embedding is left out unless the update has one."""
    made = strict_class(_INPUT)()
    message: types_pb2.MemoryInput = made  # type: ignore[assignment]  # the same shape, with the rules
    message.memory_id = memory.memory_id
    message.text = memory.text
    message.kind = int(memory.kind)  # type: ignore[assignment]
    message.task = memory.task
    message.speaker = memory.speaker
    message.session_id = memory.session_id
    message.tags.extend(memory.tags)
    for key, value in memory.attributes.items():
        message.attributes[key].MergeFromString(attribute_to(value).SerializeToString())
    if memory.importance is not None:
        message.importance = memory.importance
    message.event_time.MergeFromString(time_to(memory.event_time_ns).SerializeToString())
    if memory.expire_time_ns is not None:
        message.expire_time.MergeFromString(time_to(memory.expire_time_ns).SerializeToString())
    message.supersedes.extend(memory.supersedes)
    return message


def _take(message: types_pb2.MemoryInput, new: types_pb2.MemoryInput, path: str) -> None:
    """Give one field of `message` the value that it has in `new`; one that is not set there is cleared."""
    if path.startswith(_ATTRIBUTE):
        key = path.removeprefix(_ATTRIBUTE)
        message.attributes.pop(key, None)
        if key in new.attributes:
            message.attributes[key].MergeFromString(new.attributes[key].SerializeToString())
        return
    message.ClearField(path)  # type: ignore[arg-type]
    only = type(new)()
    only.CopyFrom(new)
    for field, _ in new.ListFields():
        if field.name != path:
            only.ClearField(field.name)  # type: ignore[arg-type]
    message.MergeFromString(only.SerializeToString())
