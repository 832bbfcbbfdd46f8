"""SIGTERM and SIGINT ask for a drain; a second one ends the wait for open calls."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["StopSignals", "stop_signals"]


@dataclass(slots=True)
class StopSignals:
    """`asked` is set by the first signal, `urged` by the second."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    urged: asyncio.Event = field(default_factory=asyncio.Event)

    def deliver(self) -> None:
        """Count one signal."""
        (self.urged if self.asked.is_set() else self.asked).set()


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Handle the signals on the running event loop for the time of the block."""
    loop = asyncio.get_running_loop()
    signals = StopSignals()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.deliver)
    try:
        yield signals
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
