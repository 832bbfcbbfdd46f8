"""When Python looks for cyclic garbage: not while the server starts, and never again among what the start left.

Importing and opening make hundreds of thousands of objects that live as long as the server; looking through them
again and again is a tenth of the start, and later a pause of tens of milliseconds in some answers.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_THRESHOLDS: Final = (10_000, 20, 20)
"""New objects until the youngest are looked at, and how many such rounds until the older ones are."""


@contextmanager
def collected_when_open() -> Iterator[None]:
    """Collect nothing until `settle` is called or the block ends; the process's settings are restored then."""
    enabled, thresholds = gc.isenabled(), gc.get_threshold()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        (gc.enable if enabled else gc.disable)()


def settle() -> None:
    """Take what there is for permanent, and collect from now on."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()
