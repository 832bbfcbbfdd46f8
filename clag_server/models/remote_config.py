"""How a remote model server is reached and how patiently: bounds with their units, and the check of its address.

A server is named by its base address, such as `http://127.0.0.1:8000/v1`; there is no default, so that nothing is
ever sent to a host that nobody named.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

__all__ = ["RemoteAddress", "RemoteConfig", "RemoteConfigError", "parse_address"]


class RemoteConfigError(ValueError):
    """The address or the key file cannot be used; one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """A checked address."""

    base: str
    """Where the OpenAI-compatible paths begin, without a closing slash: `http://127.0.0.1:8000/v1`."""
    root: str
    """The same without `/v1`: where servers keep the paths that are their own (SGLang's `/generate`)."""
    clear_text: bool
    """True when memories would cross a network unencrypted: plain http to another machine."""


def parse_address(url: str) -> RemoteAddress:
    """Check the address of a model server.

    Args:
        url: `http` or `https`, a host, and optionally a port and a path; without a path, `/v1` is meant.

    Raises:
        RemoteConfigError: Not such an address, or it holds a password, a query or a fragment.
    """
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise RemoteConfigError(f"the model server's address is not an address: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise RemoteConfigError("the model server's address must be like http://127.0.0.1:8000/v1")
    if parts.username is not None or parts.password is not None:
        # An address is printed by `clag config`, in logs and in errors; a password must not travel in it.
        raise RemoteConfigError("the model server's address holds a password; put it into the API key file")
    if parts.query or parts.fragment:
        raise RemoteConfigError("the model server's address must not have a query or a fragment")
    path = parts.path.rstrip("/") or "/v1"
    origin = f"{parts.scheme}://{parts.netloc}"
    return RemoteAddress(
        origin + path, origin + path.removesuffix("/v1"), parts.scheme == "http" and not _is_here(host)
    )


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class RemoteConfig:
    """One remote language model."""

    url: str
    """Base address; see `parse_address`."""
    model: str
    """The model's name on that server."""
    api_key_file: Path | None = None
    """File whose content is sent as the bearer token; read again at each probe, so that a key can be changed."""
    concurrency: int = 16
    """Requests in flight at once. A server that batches well (vLLM, SGLang) takes more, a laptop's less."""
    attempts: int = 4
    """Tries of one call, the first included."""
    backoff_base_s: float = 0.25
    """Upper bound of the first wait between two tries; it doubles with each."""
    backoff_cap_s: float = 8.0
    connect_timeout_s: float = 5.0
    attempt_timeout_s: float = 120.0
    """From the sending of a request to its whole answer."""
    call_timeout_s: float = 300.0
    """A call with all its tries, for callers that give no deadline."""
    silence_s: float = 20.0
    """A request that a caller's deadline cut after so long without an answer counts against the server."""
    breaker_failures: int = 5
    """Consecutive failures after which no request is sent until a probe succeeds."""
    breaker_open_s: float = 1.0
    """Wait before the first probe; it doubles up to `breaker_cap_s`."""
    breaker_cap_s: float = 30.0
    max_queue: int = 4096
    """Calls that may wait; more are refused at once, so that a stuck server costs no memory."""
    max_answer_bytes: int = 8 << 20
    """Bytes of one answer; prompt log-probabilities of long prompts take some hundred bytes a token."""
    prompt_characters: int = 32_768
    choose_text_characters: int = 1024
    """Characters of a text that are scored, about the 256 tokens of the local backend; the rest is clipped."""
    choose_head_characters: int = 2048
    """Characters of a head that are read, about 512 tokens."""
    head_cache: int = 2048
    """Heads whose log-probabilities are remembered; one is some 10 kB."""
