"""Who waits for which memory to come how far: the pipeline publishes, ingest streams and creates listen."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from clag_server.types.ingest import AckLevel
from clag_server.types.memory import MemoryState

_REMEMBERED = 65_536


@dataclass(frozen=True, slots=True)
class KeyProgress:
    """A memory (catalog key) reached a level.

    A memory that will never get further (quarantined, deleted) is said to have reached ORGANIZED, with the reason
    in `error`.
    """

    key: int
    level: AckLevel
    cluster: int | None
    state: MemoryState
    error: str = ""


Listener: TypeAlias = Callable[[KeyProgress], None]


class ProgressHub:
    """Delivers progress by key, on the event loop, without queues: a listener must return at once.

    The last progress of recent keys is remembered, so that a listener that comes after the pipeline was quick
    still hears of it.
    """

    def __init__(self) -> None:
        self._listeners: dict[int, list[Listener]] = {}
        self._recent: OrderedDict[int, KeyProgress] = OrderedDict()

    def listen(self, key: int, listener: Listener) -> None:
        """Call `listener` for each progress of the key from now on, and at once with what is known."""
        self._listeners.setdefault(key, []).append(listener)
        known = self._recent.get(key)
        if known is not None:
            listener(known)

    def forget(self, key: int, listener: Listener) -> None:
        """Stop calling `listener` for the key; unknown pairs are ignored."""
        listeners = self._listeners.get(key)
        if listeners is None or listener not in listeners:
            return
        listeners.remove(listener)
        if not listeners:
            del self._listeners[key]

    def restart(self, key: int) -> None:
        """Forget how far a memory came: it begins anew, and who listens from now on waits for that."""
        self._recent.pop(key, None)

    def publish(self, progress: Iterable[KeyProgress]) -> None:
        """Tell the listeners of each key."""
        for one in progress:
            self._recent[one.key] = one
            self._recent.move_to_end(one.key)
            for listener in list(self._listeners.get(one.key, ())):
                listener(one)
        while len(self._recent) > _REMEMBERED:
            self._recent.popitem(last=False)
