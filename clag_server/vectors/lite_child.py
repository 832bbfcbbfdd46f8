"""The child process that runs Milvus Lite: one gRPC server on a Unix socket, for all namespaces.

Run by the supervisor as `__main__`. It listens on a socket file in a folder that only this user can enter (the
server that ships with Milvus Lite binds all interfaces, and a loopback port is open to every local user).
Nothing here decides anything: the server process is the only client.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import threading
from concurrent import futures
from pathlib import Path

import grpc
from milvus_lite.adapter.grpc.servicer import MilvusServicer
from milvus_lite.db import MilvusLite
from pymilvus.grpc_gen import milvus_pb2_grpc

from clag_server.children import lifeline

_MAX_MESSAGE_BYTES = 64 << 20
_WORKERS = 8
_STOP_GRACE_S = 2.0
_COLLECTION = re.compile(r"clag_\d+")


def main() -> None:
    """Serve until SIGTERM, then close the store (which flushes what it holds)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--purge", action="append", default=[], help="collection to remove before opening")
    args = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    os.umask(0o077)
    for name in args.purge:
        _purge(args.data_dir, name)
    args.socket.unlink(missing_ok=True)
    store = MilvusLite(str(args.data_dir))
    server = grpc.server(
        futures.ThreadPoolExecutor(_WORKERS, thread_name_prefix="milvus-lite"),
        options=[
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
        ],
    )
    milvus_pb2_grpc.add_MilvusServiceServicer_to_server(MilvusServicer(store), server)
    uri = f"unix:{args.socket}"
    server.add_insecure_port(uri)
    server.start()
    lifeline.ready({"uri": uri})
    stop.wait()
    server.stop(_STOP_GRACE_S).wait()
    store.close()


def _purge(data_dir: Path, name: str) -> None:
    """Remove the files of a collection that Milvus Lite can neither open nor drop."""
    if not _COLLECTION.fullmatch(name):
        raise ValueError(f"not a collection of ours: {name!r}")
    shutil.rmtree(data_dir / "collections" / name, ignore_errors=True)


if __name__ == "__main__":
    main()
