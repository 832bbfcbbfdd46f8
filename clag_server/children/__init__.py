"""Supervised child processes: how CLAG keeps heavy engines out of the server process (DESIGN section 1).

`supervisor` is the server's side (`spawn` one start of it), `lifeline` what a child calls, `boot` the first code
that runs in a child.
"""

from clag_server.children.spawn import Launch
from clag_server.children.state import (
    ChildFailedError,
    ChildNotReadyError,
    ChildState,
    ChildStatus,
    RestartPolicy,
)
from clag_server.children.supervisor import ReadyInfo, SupervisedProcess

__all__ = [
    "ChildFailedError",
    "ChildNotReadyError",
    "ChildState",
    "ChildStatus",
    "Launch",
    "ReadyInfo",
    "RestartPolicy",
    "SupervisedProcess",
]
