"""First code of every supervised child: `python -m clag_server.children.boot FD MODULE [ARGS...]`.

It ties the process to its parent before anything slow is imported, then runs MODULE as `__main__` with ARGS.
"""

from __future__ import annotations

import runpy
import sys

from clag_server.children import lifeline


def main() -> None:
    """Attach the life line, then become MODULE."""
    fd, module = int(sys.argv[1]), sys.argv[2]
    lifeline.attach(fd)
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
