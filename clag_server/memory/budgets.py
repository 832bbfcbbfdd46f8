"""How much of evolution the SLM is asked for: a bound of calls per hour, and an end to falling behind.

What is beyond them is done at once by the deterministic stand-ins, with FallbackCause.BUDGET, and stays so: a slow
model must not hold memories back from being organized for ever.
"""

from __future__ import annotations

from clag_server.memory.config import OrganizeConfig

_HOUR_NS = 3_600 * 10**9


class SlmBudget:
    """Grants calls of one namespace; used from one event loop.

    Args:
        config: `slm_calls_per_hour` refills evenly, and an hour's worth may be used at once; `slm_behind_s` is for
            how long the backlog may last.
    """

    def __init__(self, config: OrganizeConfig) -> None:
        self._per_hour = config.slm_calls_per_hour
        self._patience_ns = int(config.slm_behind_s * 1e9)
        self._left = float(self._per_hour)
        self._counted_ns: int | None = None
        self._behind_since_ns: int | None = None

    def grant(self, wanted: int, *, now_ns: int, patient: bool) -> int:
        """Return how many of `wanted` calls may be made, and take them.

        Args:
            wanted: Memories that are due, oldest first.
            now_ns: The wall clock.
            patient: Whether they may wait as long as it takes (what an import wants done in idle time).
        """
        if self._exhausted(now_ns) and not patient:
            return 0
        if not self._per_hour:
            return wanted
        passed_ns = max(0, now_ns - (now_ns if self._counted_ns is None else self._counted_ns))
        self._left = min(float(self._per_hour), self._left + self._per_hour * passed_ns / _HOUR_NS)
        self._counted_ns = now_ns
        granted = min(wanted, int(self._left))
        self._left -= granted
        return granted

    def looked(self, *, more: bool, now_ns: int) -> None:
        """Hear whether more is due than one round takes: since when that is so is how far behind the SLM is."""
        if not more:
            self._behind_since_ns = None
        elif self._behind_since_ns is None:
            self._behind_since_ns = now_ns

    def _exhausted(self, now_ns: int) -> bool:
        """Whether a backlog has lasted so long that what is left of it is done without the SLM."""
        since = self._behind_since_ns
        return bool(self._patience_ns) and since is not None and now_ns - since > self._patience_ns
