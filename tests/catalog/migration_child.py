"""A process that opens a copy of an old catalog again and again, and is killed one statement later each time.

Usage: `python -m tests.catalog.migration_child OLD DIRECTORY`. It leaves DIRECTORY/0.db, 1.db, ...: N.db is a copy
of OLD whose opening was killed before its statement N, of those that write. The last one was opened whole. It
prints their number.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import closing
from pathlib import Path

from clag_server.catalog.connections import connect_writer, driver_of, make_engine
from clag_server.catalog.ownership import take_over


def open_until(path: Path, statement: int) -> None:
    """Open a catalog as a server does, and die when it is about to run its statement of this number."""
    connection = connect_writer(make_engine(path))
    left = statement

    def count(sql: str) -> None:
        nonlocal left
        if sql.startswith(("SELECT", "PRAGMA", "--")):
            return
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    driver_of(connection).set_trace_callback(count)
    take_over(connection)


def main(old: Path, directory: Path) -> None:
    """Kill one opening after the other, until one ends."""
    warm = directory / "warm.db"
    shutil.copy(old, warm)
    with closing(connect_writer(make_engine(warm))) as connection:
        take_over(connection)  # what this imports, the children have already
    statement = 0
    while True:
        path = directory / f"{statement}.db"
        shutil.copy(old, path)
        child = os.fork()
        if child == 0:
            open_until(path, statement)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        statement += 1
        if not os.WIFSIGNALED(status):
            sys.stdout.write(f"{statement}\n")
            sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
