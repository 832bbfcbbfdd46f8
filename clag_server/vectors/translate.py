"""What errors of the Milvus client mean: the backend is away, or what it stores is in doubt."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import grpc

from clag_server.vectors.errors import BackendAwayError, BackendFaultError

if TYPE_CHECKING:
    from pymilvus.exceptions import MilvusException

__all__ = ["translated"]


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn the client's errors into ours; `what` names the call in the message."""
    from pymilvus.exceptions import MilvusException

    try:
        yield
    except grpc.RpcError as error:
        code = getattr(error, "code", lambda: None)()  # every error of a call has it, the base class does not
        raise BackendAwayError(f"{what}: {code}", hung=code is grpc.StatusCode.DEADLINE_EXCEEDED) from error
    except MilvusException as error:
        if _is_away(error):
            raise BackendAwayError(f"{what}: {error.message}"[:300]) from error
        raise BackendFaultError(f"{what}: {error.message} (code {error.code})"[:300]) from error


def _is_away(error: MilvusException) -> bool:
    """Whether the client gave up on a connection, rather than hearing an error from the backend."""
    # The client raises errors "from" themselves, so causes can be a circle.
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        cause = waiting.pop()
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        # A closed channel is a ValueError of gRPC.
        if isinstance(cause, grpc.RpcError) or (isinstance(cause, ValueError) and "channel" in str(cause)):
            return True
        waiting += [cause.__cause__, cause.__context__]
    return isinstance(error.code, grpc.StatusCode)
