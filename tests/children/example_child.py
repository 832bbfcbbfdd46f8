"""A small real child for the supervisor's tests. Its first argument says what it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from clag_server.children import lifeline


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "serve":
        lifeline.ready({"port": 4711})
    elif what == "die-first":
        # Ends on its first run, serves on its second: the marker file tells which this is.
        marker = Path(rest[0])
        if not marker.exists():
            marker.touch()
            sys.stderr.write("first run: broken on purpose\n")
            sys.exit(3)
        lifeline.ready()
    elif what == "crash":
        sys.stderr.write("cannot read the weights\n")
        sys.exit(4)
    elif what == "fatal":
        lifeline.fatal("the data folder is locked")
    elif what == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        lifeline.ready()
    elif what == "mute":
        pass  # never ready
    elif what == "noisy":
        sys.stdout.write("x" * 300_000)
        sys.stdout.write("\nlast words\n")
        sys.stdout.flush()
        lifeline.ready()
    elif what == "grandchild":
        process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        lifeline.ready({"grandchild": process.pid})
    elif what == "stuck":
        lifeline.ready()
        _hold_the_interpreter()
    threading.Event().wait()


def _hold_the_interpreter() -> None:
    import ctypes

    ctypes.PyDLL(None).pause()  # PyDLL keeps the interpreter lock: no other thread of this process runs


if __name__ == "__main__":
    assert os.getpgrp() == os.getpid(), "a supervised child leads its own group"
    main()
