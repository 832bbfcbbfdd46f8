"""Small values between protobuf and domain: times, revisions, ids of clusters and episodes, embeddings, attributes.

Revisions are opaque to clients. A token is bound to its namespace by a checksum, so that one of another namespace,
or one that was made up, is an error instead of a wait for a revision that never comes.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from clag.v1 import types_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from clag_server.contract.violations import embedding_violation
from clag_server.types.errors import FieldViolation, InvalidField
from clag_server.types.memory import AttributeValue, Vector

__all__ = [
    "EmbeddingShape",
    "attribute_from",
    "attribute_to",
    "cluster_id",
    "cluster_number",
    "duration",
    "embedding_from",
    "episode_id",
    "episode_number",
    "fresh_revision",
    "revision",
    "time_from",
    "time_to",
]

_NS_PER_S = 1_000_000_000
_CLUSTER_ID = re.compile(r"c([0-9]{1,18})")
_EPISODE_ID = re.compile(r"e([0-9]{1,18})")
_REVISION = re.compile(r"r([0-9a-f]{1,16})-([0-9a-f]{8})")

_SAFE_SQUARES = 1e-30
"""Between this and its inverse a sum of squares has its full precision in float32."""


class EmbeddingShape(InvalidField):
    """An embedding of the wrong length, or without a direction."""


def time_to(ns: int) -> Timestamp:
    """Nanoseconds since the epoch as a timestamp."""
    return Timestamp(seconds=ns // _NS_PER_S, nanos=ns % _NS_PER_S)


def time_from(stamp: Timestamp) -> int:
    """Nanoseconds since the epoch; the schema's rules keep it inside int64."""
    return stamp.seconds * _NS_PER_S + stamp.nanos


def duration(seconds: float) -> Duration:
    """Seconds as a duration, to the nanosecond."""
    whole = Duration()
    whole.FromNanoseconds(round(seconds * _NS_PER_S))
    return whole


def cluster_id(cluster: int | None) -> str:
    """Public id of a cluster, "" for none."""
    return "" if cluster is None else f"c{cluster}"


def cluster_number(public_id: str) -> int | None:
    """Number of a cluster, None when no cluster can have this id."""
    match = _CLUSTER_ID.fullmatch(public_id)
    return int(match[1]) if match else None


def episode_id(episode: int | None) -> str:
    """Public id of an episode, "" for none."""
    return "" if episode is None else f"e{episode}"


def episode_number(public_id: str) -> int | None:
    """Number of an episode, None when no episode can have this id."""
    match = _EPISODE_ID.fullmatch(public_id)
    return int(match[1]) if match else None


def revision(namespace: str, number: int) -> types_pb2.Revision:
    """Token of a revision."""
    return types_pb2.Revision(token=f"r{number:x}-{_checksum(namespace, number):08x}")


def fresh_revision(namespace: str, read: types_pb2.ReadOptions, *, field: str = "read") -> int:
    """Number of the revision that a read must see; 0 when it asked for none.

    Raises:
        InvalidField: The token is malformed or belongs to another namespace.
    """
    token = read.at_least_as_fresh.token
    if not token:
        return 0
    match = _REVISION.fullmatch(token)
    if match and _checksum(namespace, number := int(match[1], 16)) == int(match[2], 16):
        return number
    raise InvalidField(
        FieldViolation(
            f"{field}.at_least_as_fresh.token",
            f'is not a revision of namespace "{namespace}"; use one that the server returned for it',
        )
    )


def embedding_from(values: Sequence[float], *, dim: int | None, field: str) -> Vector | None:
    """Normalise a caller's embedding; None when there is none.

    Args:
        values: The numbers.
        dim: Dimension of the namespace's index; None when it is not known yet.
        field: Path for the error.

    Returns:
        Shape (dim,), float32, of length 1.

    Raises:
        EmbeddingShape: Another length than the index has, a number that is not finite, or all zero.
    """
    if not values:
        return None
    if dim is not None and len(values) != dim:
        raise EmbeddingShape(
            FieldViolation(field, f"has {len(values)} numbers, the vector index of the namespace has {dim}")
        )
    vector = np.asarray(values, dtype=np.float32)
    with np.errstate(over="ignore"):
        squares = float(np.dot(vector, vector))
    if _SAFE_SQUARES < squares < 1 / _SAFE_SQUARES:
        return vector * np.float32(squares**-0.5)
    wrong = embedding_violation(values, field=field)
    if wrong is not None:
        raise EmbeddingShape(wrong)
    # Very long or very short: the squares leave float32's range, which those of float64 do not.
    wide = vector.astype(np.float64)
    return (wide / float(np.linalg.norm(wide))).astype(np.float32)


def attribute_from(value: types_pb2.AttributeValue) -> AttributeValue | None:
    """The typed value; None when none is set."""
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "int_value":
            return value.int_value
        case "double_value":
            return value.double_value
        case "bool_value":
            return value.bool_value
        case "string_list":
            return tuple(value.string_list.values)
        case _:
            return None


def attribute_to(value: AttributeValue) -> types_pb2.AttributeValue:
    """The message of a typed value. bool comes before int: it is one."""
    match value:
        case bool():
            return types_pb2.AttributeValue(bool_value=value)
        case int():
            return types_pb2.AttributeValue(int_value=value)
        case float():
            return types_pb2.AttributeValue(double_value=value)
        case str():
            return types_pb2.AttributeValue(string_value=value)
        case _:
            return types_pb2.AttributeValue(string_list=types_pb2.StringList(values=value))


def attributes_from(values: Mapping[str, types_pb2.AttributeValue]) -> dict[str, AttributeValue]:
    """All typed values by key."""
    return {key: typed for key, value in values.items() if (typed := attribute_from(value)) is not None}


def _checksum(namespace: str, number: int) -> int:
    return zlib.crc32(f"{namespace}/{number}".encode())
