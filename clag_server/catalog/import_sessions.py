"""Places of imported memories in their sessions."""

from __future__ import annotations

from typing import Final

from clag_server.catalog.transaction import WriteTx

_READ: Final = "SELECT next_position FROM sessions WHERE ns = ? AND session_id = ?"
_SAVE: Final = (
    "INSERT INTO sessions (ns, session_id, next_position) VALUES (?, ?, ?)"
    " ON CONFLICT (ns, session_id) DO UPDATE SET next_position = excluded.next_position"
)


class SessionPositions:
    """The next position of each session that a batch touches, inside one transaction."""

    def __init__(self, tx: WriteTx, ns: int) -> None:
        self._tx = tx
        self._ns = ns
        self._next: dict[str, int] = {}

    def take(self, session_id: str, wanted: int) -> int:
        """Return `wanted` where that is free (gaps of the source stay gaps), else the next position."""
        if session_id not in self._next:
            row = self._tx.connection.exec_driver_sql(_READ, (self._ns, session_id)).one_or_none()
            self._next[session_id] = 0 if row is None else int(row[0])
        position = max(self._next[session_id], wanted)
        self._next[session_id] = position + 1
        return position

    def save(self) -> None:
        """Write the next positions back."""
        self._tx.executemany(_SAVE, [(self._ns, session, position) for session, position in self._next.items()])
