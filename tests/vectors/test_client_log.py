"""What the Milvus client logs comes out as the server's own lines do, whenever the client is imported."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import io, json, logging, sys
from clag_server.ops.logging import configure_logging
out = io.StringIO()
configure_logging(level="info", json=True, stream=out)
import pymilvus
from clag_server.vectors.client_log import adopt_client_loggers
adopt_client_loggers()
logging.getLogger("pymilvus").info("chatter")
logging.getLogger("pymilvus.client.grpc_handler").warning("lost %s", "connection")
lines = [json.loads(line) for line in out.getvalue().splitlines()]
assert [(one["event"], one["level"]) for one in lines] == [("lost connection", "warning")], lines
"""


def test_the_clients_warnings_are_lines_of_the_server_log() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
