"""A real Milvus server for tests, cut off from every network: only a Unix socket leads to it.

The wheel `milvus` (dependency group `milvus-server`) carries a standalone server with its own etcd and storage. It
binds all interfaces and cannot be told otherwise, so it runs in a network namespace of its own, where there are no
others. Unix sockets in the file system do cross network namespaces: a small bridge inside forwards one to the port.

    test process ---- unix socket ----> bridge (this module, pid 1 of its own namespaces) --tcp--> milvus

Needs Linux and permission to make namespaces: root has it, other users where unprivileged user namespaces are
allowed. Everything in the process namespace dies with the bridge, and the bridge dies with the test process.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import importlib.util
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["SERVER_TOKEN", "milvus_server", "why_no_server"]

SERVER_TOKEN = "root:Milvus"
"""The credentials that a Milvus server has after its installation."""

_UNSHARE = ("unshare", "--map-root-user", "--net", "--pid", "--mount", "--fork", "--kill-child")
_READY_S = 60
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def why_no_server() -> str:
    """Return why a server cannot run here, empty when it can."""
    if importlib.util.find_spec("milvus") is None:
        return "the package milvus is not installed (dependency group milvus-server)"
    if shutil.which("unshare") is None:
        return "there is no unshare, and the server must not listen on the machine's interfaces"
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"no namespaces may be made here: {tried.stderr.strip()}"
    return ""


@contextlib.contextmanager
def milvus_server(folder: Path) -> Iterator[str]:
    """Run a server that wants `SERVER_TOKEN` and give its address, for as long as the context lasts.

    Args:
        folder: An empty directory of its own, with a path short enough for a Unix socket.

    Raises:
        RuntimeError: It did not start; the message says where its log is.
    """
    path = folder / "milvus.sock"
    command = [*_UNSHARE, sys.executable, "-m", "tests.support.milvus_server", str(folder), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"the Milvus server did not start, see {folder}/logs")
            yield f"unix:{path}"
        finally:
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            process.kill()


# --- inside the namespaces
def main(folder: Path, path: Path) -> None:
    """Start Milvus, forward the socket to it, and end when standard input does."""
    from milvus import MilvusServer, MilvusServerConfig

    # Process 1 of a namespace has no default actions: a server that never comes up must still end here.
    signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
    signal.alarm(_READY_S)
    _raise_loopback()
    _own_run()
    config = MilvusServerConfig(data_dir=str(folder))
    config.set("authorization_enabled", val=True)
    config.set("etcd_log_level", "error")
    server = MilvusServer(config)
    server.start()
    signal.alarm(0)
    try:
        asyncio.run(_bridge(path, server.listen_port))
    finally:
        server.stop()


def _raise_loopback() -> None:
    """Switch the loopback interface on: in a new network namespace it is off."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(probe, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _own_run() -> None:
    """Mount an empty /run: the server puts files at a fixed path there, which others must not meet."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", b"/run", b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), "cannot mount an empty /run")


async def _bridge(path: Path, port: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # only when all ends: asyncio would print it
            there, back = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_copy(reader, back), _copy(there, writer))

    listener = await asyncio.start_unix_server(serve, path)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    async with listener:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while part := await source.read(1 << 16):
            target.write(part)
            await target.drain()
    except ConnectionError:
        pass
    finally:
        target.close()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: with the process that asked for the server
    main(Path(sys.argv[1]), Path(sys.argv[2]))
