"""A process that supervises one child and prints its pid, to be killed by a test."""

from __future__ import annotations

import asyncio
import sys

from clag_server.children import SupervisedProcess


async def main() -> None:
    child = SupervisedProcess("example", "tests.children.example_child", [sys.argv[1]])
    await child.start()
    await child.wait_ready(30)
    sys.stdout.write(f"{child.status.pid}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
