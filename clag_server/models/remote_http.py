"""One HTTP exchange with a model server: JSON in, JSON or server-sent events out, every fault a `RemoteFailure`.

No retries here and no waiting in lines. The answer is read piece by piece with a bound, so that a server that never
ends its answer costs neither memory nor the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import ssl
import time
from typing import TYPE_CHECKING, Final

import httpx2

from clag_server.models.remote_config import RemoteAddress, RemoteConfig, RemoteConfigError
from clag_server.models.remote_failure import FailureKind, RemoteFailure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

__all__ = ["RemoteHttp", "read_api_key"]

_ERROR_CHARACTERS: Final = 300
"""Of a server's own words in an error message."""

_KINDS: Final = {
    401: FailureKind.FORBIDDEN,
    403: FailureKind.FORBIDDEN,
    404: FailureKind.NOT_OFFERED,
    405: FailureKind.NOT_OFFERED,
    408: FailureKind.DOWN,
    425: FailureKind.BUSY,
    429: FailureKind.BUSY,
    501: FailureKind.NOT_OFFERED,
}


def read_api_key(config: RemoteConfig) -> str:
    """Read the API key: the file's content without surrounding white space; empty without a file.

    Raises:
        RemoteConfigError: The file cannot be read, or holds no key that can be sent.
    """
    if config.api_key_file is None:
        return ""
    try:
        key = config.api_key_file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise RemoteConfigError(f"models.slm_api_key_file: cannot read {config.api_key_file}: {reason}") from error
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise RemoteConfigError(
            f"models.slm_api_key_file: {config.api_key_file} must hold one key of ASCII characters"
        )
    return key


class RemoteHttp:
    """The connection pool of one model server.

    Args:
        config: Timeouts and bounds.
        address: Where.
    """

    def __init__(self, config: RemoteConfig, address: RemoteAddress) -> None:
        self._config = config
        self._address = address
        self._key = ""
        self._client = httpx2.AsyncClient(
            # Pool waits are ours (the priority gate), so the pool must never be the narrower place.
            limits=httpx2.Limits(
                max_connections=config.concurrency + 4, max_keepalive_connections=config.concurrency
            ),
            timeout=httpx2.Timeout(config.attempt_timeout_s, connect=config.connect_timeout_s),
            follow_redirects=False,  # a redirect would carry memories to a host that nobody named
            trust_env=False,  # nor may a proxy variable do that, or a .netrc file add credentials
            # The system's authorities, or those of SSL_CERT_FILE: model servers in a house have its certificates.
            verify=ssl.create_default_context(),
        )

    def set_key(self, key: str) -> None:
        """Send this key from now on; an empty one sends none."""
        self._key = key

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def get(self, path: str) -> Mapping[str, object]:
        """Get a JSON object from below the base address; raises as `post`."""
        async with self._exchange("GET", self._address.base + path, None) as response:
            return await self._object(response)

    async def post(self, path: str, body: Mapping[str, object], *, own: bool = False) -> Mapping[str, object]:
        """Send a JSON object and return the JSON object of the answer; an array comes as the object's `items`.

        Args:
            path: Below the base address.
            body: What is sent.
            own: The path is the server's own, outside `/v1`.

        Raises:
            RemoteFailure: Anything else than a JSON object with status 200.
        """
        base = self._address.root if own else self._address.base
        async with self._exchange("POST", base + path, body) as response:
            return await self._object(response)

    @contextlib.asynccontextmanager
    async def events(self, path: str, body: Mapping[str, object]) -> AsyncIterator[AsyncIterator[str]]:
        """Send a JSON object and yield the data of each server-sent event of the answer.

        Raises:
            RemoteFailure: A status other than 200, or the connection broke; also while iterating.
        """
        async with self._exchange("POST", self._address.base + path, body) as response:
            yield self._event_data(response)

    @contextlib.asynccontextmanager
    async def _exchange(
        self, method: str, url: str, body: Mapping[str, object] | None
    ) -> AsyncIterator[httpx2.Response]:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        try:
            async with (
                asyncio.timeout(self._config.attempt_timeout_s),
                self._client.stream(method, url, json=body, headers=headers) as response,
            ):
                if response.status_code != 200:
                    raise await self._refusal(response)
                yield response
        except TimeoutError:
            raise RemoteFailure(
                FailureKind.DOWN, f"no whole answer within {self._config.attempt_timeout_s:g} s"
            ) from None
        except httpx2.ConnectError as error:
            raise RemoteFailure(FailureKind.DOWN, f"cannot connect ({_words(error)})") from error
        except httpx2.TimeoutException as error:
            raise RemoteFailure(FailureKind.DOWN, f"timed out ({type(error).__name__})") from error
        except (httpx2.RequestError, httpx2.StreamError) as error:
            raise RemoteFailure(FailureKind.DOWN, f"the connection broke ({_words(error)})") from error
        except httpx2.InvalidURL as error:
            raise RemoteFailure(FailureKind.NOT_OFFERED, f"not an address: {error}") from error

    async def _refusal(self, response: httpx2.Response) -> RemoteFailure:
        status = response.status_code
        kind = _KINDS.get(status, FailureKind.DOWN if status >= 500 else FailureKind.REFUSED)
        said = _server_words(await self._read(response, bound=1 << 16, strict=False))
        if self._key:
            said = said.replace(self._key, "***")  # some servers repeat the key that they refuse
        reason = f"status {status}" + (f": {said}" if said else "")
        return RemoteFailure(kind, reason, _retry_after_s(response.headers.get("retry-after")))

    async def _object(self, response: httpx2.Response) -> Mapping[str, object]:
        raw = await self._read(response, bound=self._config.max_answer_bytes)
        try:
            parsed = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise RemoteFailure(FailureKind.GARBLED, "the answer is not JSON") from error
        if isinstance(parsed, list):
            return {"items": parsed}
        if not isinstance(parsed, dict):
            raise RemoteFailure(FailureKind.GARBLED, "the answer is not a JSON object")
        return parsed

    async def _read(self, response: httpx2.Response, *, bound: int, strict: bool = True) -> bytes:
        """Read a body up to a bound; what is over it is an error, or is left unread when not strict."""
        chunks: list[bytes] = []
        size = 0
        async for chunk in response.aiter_bytes():
            chunks.append(chunk)
            size += len(chunk)
            if size > bound:
                if strict:
                    raise RemoteFailure(FailureKind.GARBLED, f"the answer is longer than {bound} bytes")
                break
        return b"".join(chunks)

    async def _event_data(self, response: httpx2.Response) -> AsyncIterator[str]:
        if response.headers.get("content-type", "").startswith("application/json"):
            # A server that cannot stream gives the whole answer: one event.
            yield (await self._read(response, bound=self._config.max_answer_bytes)).decode("utf-8", "replace")
            return
        source = httpx2.EventSource(response, max_event_size=self._config.max_answer_bytes)
        async for event in source:
            if event.data:
                yield event.data


def _server_words(raw: bytes) -> str:
    """Return the message of an error body: OpenAI's `error.message`, FastAPI's `detail`, or the text."""
    text = raw.decode("utf-8", "replace")
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        found = parsed.get("error", parsed.get("detail", parsed.get("message")))
        if isinstance(found, dict):
            found = found.get("message")
        if found is not None:
            text = str(found)
    shown = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(shown.split())[:_ERROR_CHARACTERS]


def _retry_after_s(header: str | None) -> float | None:
    """Read `Retry-After` (RFC 9110, section 10.2.3): seconds, or a date; None when there is none to read."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return min(max(seconds, 0.0), 3600.0) if seconds == seconds else None


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".rstrip(": ").split())[:_ERROR_CHARACTERS]
