"""A client process that streams until it is killed; it prints how far it was acknowledged.

Usage: python -m tests.support.endless_client SOCKET NAMESPACE
"""

from __future__ import annotations

import sys

import grpc

from tests.support.ingest import IngestStream, texts
from tests.support.process import Stubs


def main(socket: str, namespace: str) -> None:
    with (
        grpc.insecure_channel(f"unix:{socket}") as channel,
        IngestStream(Stubs(channel), namespace, "endless") as stream,
    ):
        while True:
            first = stream.next_seq
            stream.batch(texts(*(f"note {number}" for number in range(first, first + 10))))
            sys.stdout.write(f"{stream.acked().acked_through}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
