"""What concerns every call, one file each; `standard_interceptors` puts them in their order.

Outermost first: observe (request id, log, counters) > errors (status mapping) > drain > auth > deadline.
"""

from __future__ import annotations

from clag_server.api.interceptors.auth import AuthGuard
from clag_server.api.interceptors.deadline import DeadlineGuard
from clag_server.api.interceptors.drain import DrainGate
from clag_server.api.interceptors.errors import ErrorGuard
from clag_server.api.interceptors.guard import Guard, GuardInterceptor
from clag_server.api.interceptors.observe import CallCounters, ObserveGuard

__all__ = ["CallCounters", "DrainGate", "standard_interceptors"]


def standard_interceptors(
    *, token: str | None, unary_deadline_s: float, gate: DrainGate, counters: CallCounters
) -> list[GuardInterceptor]:
    """All interceptors of the server.

    Args:
        token: What TCP callers must present; None when there is no TCP listener.
        unary_deadline_s: Longest time of a call that is not a stream, in seconds.
        gate: Turns new calls away and tells open ones while the server drains.
        counters: Counts calls.
    """
    guards: list[Guard] = [
        ObserveGuard(counters),
        ErrorGuard(),
        gate,
        AuthGuard(token),
        DeadlineGuard(unary_deadline_s),
    ]
    return [GuardInterceptor(guard) for guard in guards]
