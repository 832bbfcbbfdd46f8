"""The conformance runner of the Python client: the line protocol of README.md on standard input and output.

Usage: python -m tests.conformance.python_runner [--face async|sync]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
from importlib.metadata import version
from typing import Protocol

from tests.conformance.pyrunner.async_face import AsyncFace
from tests.conformance.pyrunner.sync_face import SyncFace
from tests.conformance.pyrunner.wire import Json, error_of, roundtrip
from tests.conformance.pyrunner.work import Work

FEATURES = ["tls", "unix", "surrogates", "unknown_fields"]


class Face(Protocol):
    """One of the client's faces."""

    language: str

    async def run(self, work: Work) -> Json: ...


class Runner:
    """Reads commands and answers them, several at a time."""

    def __init__(self, face: Face) -> None:
        self._face = face
        self._works: dict[int, Work] = {}
        self._lock = threading.Lock()

    async def serve(self) -> None:
        """Serve until the input ends."""
        hello = {"language": self._face.language, "client": version("clag-client"), "features": FEATURES}
        self._write({"hello": hello})
        async with asyncio.TaskGroup() as group:
            while line := await asyncio.to_thread(sys.stdin.buffer.readline):
                work = Work(json.loads(line), self._write)
                self._works[work.command["id"]] = work
                group.create_task(self._answer(work))
            os._exit(0)  # the driver is gone: nothing that is at work is of use to anyone

    async def _answer(self, work: Work) -> None:
        number = work.command["id"]
        try:
            self._write({"id": number, "ok": await self._done(work)})
        except asyncio.CancelledError:
            self._write({"id": number, "error": {"code": "CANCELLED", "reason": "", "message": "cancelled"}})
        except Exception as error:  # noqa: BLE001  # whatever the client raises is an answer
            self._write({"id": number, "error": error_of(error)})

    async def _done(self, work: Work) -> Json:
        command = work.command
        match command["op"]:
            case "roundtrip":
                return {"data": roundtrip(command["type"], command["data"])}
            case "resume":
                self._works[command["target"]].resume()
                return {}
            case "progress":
                return self._works[command["target"]].progress()
            case "cancel":
                self._works[command["target"]].cancel()
                return {}
            case operation if hasattr(self._face, f"op_{operation}"):
                return await self._face.run(work)
            case operation:
                raise NotImplementedError(f"no such command: {operation}")

    def _write(self, answer: Json) -> None:
        line = json.dumps(answer, separators=(",", ":")).encode("ascii") + b"\n"
        with self._lock:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()


def main() -> None:
    """Serve one face."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--face", choices=("async", "sync"), default="async")
    face: Face = AsyncFace() if parser.parse_args().face == "async" else SyncFace()
    asyncio.run(Runner(face).serve())


if __name__ == "__main__":
    main()
