"""Reading errors as a client does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2


@dataclass(frozen=True, slots=True)
class Failure:
    """Code, reason (without its prefix), message, wrong fields, facts, and seconds to wait."""

    code: grpc.StatusCode
    reason: str
    message: str
    fields: tuple[str, ...]
    facts: Mapping[str, str]
    retry_after_s: float | None


def read(raised: grpc.RpcError) -> Failure:
    """Decode an error with its details."""
    error: Any = raised  # in fact a call too, with code and metadata
    info = error_details_pb2.ErrorInfo()
    bad = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    retry_after_s = None
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                detail.Unpack(info)
                detail.Unpack(bad)
                if detail.Unpack(retry):
                    retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
    return Failure(
        code=error.code(),
        reason=info.reason.removeprefix("ERROR_REASON_"),
        message=error.details() or "",
        fields=tuple(violation.field for violation in bad.field_violations),
        facts=dict(info.metadata),
        retry_after_s=retry_after_s,
    )


@contextmanager
def refused(code: grpc.StatusCode, reason: str = "") -> Iterator[list[Failure]]:
    """Expect the call in the block to fail; the list then holds what came back."""
    found: list[Failure] = []
    with pytest.raises(grpc.RpcError) as caught:
        yield found
    failure = read(caught.value)
    found.append(failure)
    assert failure.code is code, failure
    if reason:
        assert failure.reason == reason, failure
