"""Near-duplicates among hits: all are kept and linked, the best of them is shown and stands for the others."""

from __future__ import annotations

from collections.abc import Sequence

from clag_server.memory.supersession import Scored
from clag_server.types.memory import LinkKind


def one_of_each(hits: Sequence[Scored]) -> tuple[list[Scored], dict[str, tuple[str, ...]]]:
    """Leave out hits that say the same as a better one.

    Args:
        hits: Best first.

    Returns:
        The hits that are shown, best first, and by their id the ids of those they stand for, best first. Links of
        one duplicate to the next make them one set.
    """
    shown: list[Scored] = []
    stands_for: dict[str, list[str]] = {}
    shown_as: dict[str, str] = {}
    there = {hit.memory.memory_id for hit in hits}
    for hit in hits:
        own = hit.memory.memory_id
        same = [link.memory_id for link in hit.memory.links if link.kind is LinkKind.DUPLICATE]
        first = shown_as.get(own) or next((shown_as[one] for one in same if one in shown_as), None)
        if first is None or own == first:
            shown.append(hit)
            first = own
        else:
            stands_for.setdefault(first, []).append(own)
        for one in (own, *(other for other in same if other in there)):
            shown_as.setdefault(one, first)
    return shown, {first: tuple(others) for first, others in stands_for.items()}
