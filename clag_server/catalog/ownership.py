"""Who may write: every opening takes the catalog over, and a writer that was overtaken is refused.

The lock file of a data directory keeps two servers apart on one machine. Where it cannot (a network file system, a
copied lock), the catalog itself does: each opening counts `owner_epoch` up, and every transaction reads it together
with the numbers it reads anyway. Who finds a newer epoch never writes again.
"""

from __future__ import annotations

import os
import secrets
import socket
import sqlite3
import uuid

import sqlalchemy as sa
import structlog

from clag_server.catalog.connections import driver_of
from clag_server.catalog.migrate import migrate
from clag_server.catalog.transaction import WriteTx
from clag_server.types.errors import OwnershipLost

_CLAIM = (
    "UPDATE counters SET owner = ?, owner_epoch = owner_epoch + 1,"
    " catalog_id = CASE catalog_id WHEN '' THEN ? ELSE catalog_id END"
)
_READ = "SELECT catalog_id, owner_epoch FROM counters"

_log = structlog.get_logger(__name__)


class Owner:
    """One opening of a catalog. After that the writer's thread alone uses it.

    Attributes:
        name: "host:process:random", what a server that was overtaken tells about its successor.
        catalog_id: Names the catalog, 32 hexadecimal characters.
        epoch: The number of this opening; None while it could not be written down (a full disk).
    """

    def __init__(self) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.catalog_id = ""
        self.epoch: int | None = None
        self._found: int | None = None
        self._successor: str | None = None

    def claim(self, connection: sa.Connection) -> int:
        """Take the catalog over within the caller's transaction; `hold` says that it was committed.

        Returns:
            The epoch, above all earlier ones.
        """
        connection.exec_driver_sql(_CLAIM, (self.name, uuid.uuid4().hex))
        self.catalog_id, epoch = connection.exec_driver_sql(_READ).one()
        return int(epoch)

    def hold(self, epoch: int) -> None:
        """Remember an epoch that is on disk."""
        self.epoch = epoch

    def postpone(self, connection: sa.Connection) -> None:
        """Claim with the first write, unless somebody else does before."""
        self.catalog_id, self._found = connection.exec_driver_sql(_READ).one()

    def refuse_if_lost(self) -> None:
        """Raise OwnershipLost when this opening was overtaken, whatever the file says since."""
        if self._successor is not None:
            raise OwnershipLost(self._successor)

    def admit(self, tx: WriteTx) -> int:
        """Let a transaction begin and return the epoch to `hold` after its commit.

        Raises:
            OwnershipLost: somebody opened the catalog since.
        """
        expected = self._found if self.epoch is None else self.epoch
        if tx.owner_epoch != expected:
            self._successor = tx.owner
            _log.error("catalog was taken over", by=tx.owner, epoch=tx.owner_epoch, expected_epoch=expected)
            self.refuse_if_lost()
        return self.claim(tx.connection) if self.epoch is None else self.epoch


def take_over(connection: sa.Connection) -> Owner:
    """Migrate the catalog and claim it, in one transaction.

    A catalog that needs no migration also opens on a full disk, for reading: it is claimed with its first write.

    Raises:
        StorageFailed: it is a newer program's, or another's.
        sqlite3.Error: it cannot be read, locked or migrated.
    """
    owner = Owner()
    driver = driver_of(connection)
    driver.execute("BEGIN IMMEDIATE")
    migrated = migrate(connection)
    try:
        epoch = owner.claim(connection)
        driver.execute("COMMIT")
    except (sa.exc.OperationalError, sqlite3.OperationalError) as error:
        if migrated:
            raise
        _log.warning("catalog could not be claimed yet", error=str(getattr(error, "orig", error)))
        if driver.in_transaction:
            driver.execute("ROLLBACK")
        owner.postpone(connection)
    else:
        owner.hold(epoch)
    return owner
