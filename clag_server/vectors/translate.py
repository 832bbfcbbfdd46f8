"""What errors of the Milvus client mean: the backend is away, or what it stores is in doubt."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import grpc

from clag_server.vectors.errors import BackendAwayError, BackendFaultError

__all__ = ["translated"]

_REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_MESSAGE_CHARACTERS = 300


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn the client's errors into ours; `what` names the call in the message."""
    from pymilvus.exceptions import MilvusException

    try:
        yield
    except (grpc.RpcError, MilvusException) as error:
        away = _call_error(error)
        if away is not None:
            raise _away(what, away) from error
        message = getattr(error, "message", str(error))
        code = getattr(error, "code", None)
        if isinstance(code, grpc.StatusCode):  # the client gave up, and kept nothing but the status
            raise BackendAwayError(f"{what}: {message}"[:_MESSAGE_CHARACTERS]) from error
        raise BackendFaultError(f"{what}: {message} (code {code})"[:_MESSAGE_CHARACTERS]) from error


def _away(what: str, error: BaseException) -> BackendAwayError:
    # Every error of a call has both, their base class does not; a closed channel has neither.
    code = getattr(error, "code", lambda: None)()
    if code in _REFUSED:
        return BackendAwayError(f"{what}: the token was refused (index.token_file)")
    details = getattr(error, "details", lambda: str(error))()
    name = code.name if isinstance(code, grpc.StatusCode) else "closed"
    message = f"{what}: {name}: {details}"[:_MESSAGE_CHARACTERS]
    return BackendAwayError(message, hung=code is grpc.StatusCode.DEADLINE_EXCEEDED)


def _call_error(error: BaseException) -> BaseException | None:
    """Return what ended the call itself, where the client gave up rather than heard an error from the backend."""
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
            return cause
        waiting += [cause.__cause__, cause.__context__]
    return None
