"""Page tokens: opaque, and bound to the request that they continue.

A token holds where to go on, and a digest of that and of the request's fields that must not change between pages: a
token that was cut or altered on its way is refused, where it would pass over rows in silence. It is no secret: a
forged one can only name another place in what the caller may read anyway.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Final

from clag_server.api.errors import PageTokenMismatch

__all__ = ["page_token", "resume_after", "resume_after_number", "scope_of"]

_DIGEST_BYTES: Final = 8
_MAX_NUMBER: Final = 2**63 - 1


def scope_of(*parts: bytes | str | bool) -> bytes:
    """Digest of what must be the same on every page: method, namespace, filter, options."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        content = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(content).to_bytes(8, "big"))
        digest.update(content)
    return digest.digest()


def page_token(scope: bytes, after: int | str | None) -> str:
    """Token of the page after the row `after`; "" when there is none."""
    if after is None:
        return ""
    place = str(after).encode()
    return base64.urlsafe_b64encode(_digest(scope, place) + place).decode("ascii").rstrip("=")


def resume_after(scope: bytes, token: str) -> str:
    """The row that a token continues after; "" for the first page.

    Raises:
        PageTokenMismatch: The token is malformed, damaged or of another request.
    """
    if not token:
        return ""
    try:
        packed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        after = packed[_DIGEST_BYTES:].decode()
    except (binascii.Error, ValueError):
        raise PageTokenMismatch from None
    if not after or page_token(scope, after) != token:  # also spellings that decode alike
        raise PageTokenMismatch
    return after


def resume_after_number(scope: bytes, token: str, *, start: int) -> int:
    """The same for rows that are numbered; `start` for the first page."""
    after = resume_after(scope, token)
    if not after:
        return start
    if not (after.isascii() and after.isdigit()) or int(after) > _MAX_NUMBER:
        raise PageTokenMismatch
    return int(after)


def _digest(scope: bytes, place: bytes) -> bytes:
    return hashlib.blake2b(place, key=scope, digest_size=_DIGEST_BYTES).digest()
