"""The child process that runs Milvus Lite: one gRPC server on a Unix socket, for all namespaces.

Run by the supervisor as `__main__`. It listens on a socket file in a folder that only this user can enter (the
server that ships with Milvus Lite binds all interfaces, and a loopback port is open to every local user).
Nothing here decides anything: the server process is the only client.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import signal
import sys
import threading
import types
from concurrent import futures
from pathlib import Path

import grpc

from clag_server.children import lifeline

_MAX_MESSAGE_BYTES = 64 << 20
_WORKERS = 8
_STOP_GRACE_S = 2.0
_COLLECTION = re.compile(r"clag_\d+")


def main() -> None:
    """Serve until SIGTERM, then close the store (which flushes what it holds)."""
    _leave_the_client_out()
    from milvus_lite.adapter.grpc.servicer import MilvusServicer
    from milvus_lite.db import MilvusLite
    from pymilvus.grpc_gen import milvus_pb2_grpc

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
            # The client asks every ten seconds whether the connection lives; to gRPC's servers that is abuse.
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.keepalive_permit_without_calls", 1),
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


def _leave_the_client_out() -> None:
    """Make `pymilvus.grpc_gen` importable without the rest of its package, which is half of the start time.

    The server needs the generated messages only; the package itself imports the whole client, pandas included.
    """
    spec = importlib.util.find_spec("pymilvus")
    if spec is None or spec.submodule_search_locations is None:
        lifeline.fatal("pymilvus is not installed; install clag-server with its dependencies")
    package = types.ModuleType("pymilvus")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["pymilvus"] = package


def _purge(data_dir: Path, name: str) -> None:
    """Remove the files of a collection that Milvus Lite can neither open nor drop."""
    if not _COLLECTION.fullmatch(name):
        raise ValueError(f"not a collection of ours: {name!r}")
    shutil.rmtree(data_dir / "collections" / name, ignore_errors=True)


if __name__ == "__main__":
    main()
