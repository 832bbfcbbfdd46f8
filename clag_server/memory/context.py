"""Assembling a context: hits fill a token budget by rank, and are printed by cluster in order of time.

A small model reads a labelled, dated, deduplicated list more easily than a ranking (design, section 6.5).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from clag_server.memory.index_text import spoken_date
from clag_server.models.api import TokenCounter
from clag_server.types.memory import LinkKind
from clag_server.types.retrieval import AssembledContext, ContextFormat, MemoryHit

_SEPARATOR_TOKENS = 1
"""What joining two pieces may cost; counted so that the whole never exceeds the budget."""


def assemble(
    hits: Sequence[MemoryHit], *, budget: int, form: ContextFormat, counter: TokenCounter
) -> AssembledContext:
    """Return the context of at most `budget` tokens (of the counter's tokenizer).

    Hits are taken in order of rank; one that does not fit is passed over and counted in `left_out`, as is a
    duplicate of one already taken. Nothing is cut in the middle.
    """
    wanted = _without_duplicates(hits)
    pieces = [_piece(hit, form) for hit in wanted]
    heads = sorted({_head(hit, form) for hit in wanted})
    costs = counter.count([*heads, *pieces])
    head_cost = dict(zip(heads, costs[: len(heads)], strict=True))
    taken: list[MemoryHit] = []
    paid: set[str] = set()
    used = 0
    for hit, cost in zip(wanted, costs[len(heads) :], strict=True):
        head = _head(hit, form)
        more = cost + _SEPARATOR_TOKENS + (0 if head in paid or not head else head_cost[head] + _SEPARATOR_TOKENS)
        if used + more <= budget:
            taken.append(hit)
            paid.add(head)
            used += more
    text, tokens = _measured(taken, form, counter)
    while taken and tokens > budget:
        # Tokenizers are not additive; give up the lowest ranked until the whole fits.
        taken.remove(max(taken, key=lambda hit: hit.rank))
        text, tokens = _measured(taken, form, counter)
    if tokens > budget:
        text, tokens = "", 0
    return AssembledContext(
        text=text,
        tokens=tokens,
        memory_ids=tuple(hit.memory.memory_id for hit in _print_order(taken)),
        left_out=len(hits) - len(taken),
        truncated=False,
    )


def _measured(hits: Sequence[MemoryHit], form: ContextFormat, counter: TokenCounter) -> tuple[str, int]:
    text = _render(_print_order(hits), form)
    return text, counter.count([text])[0] if text else 0


def _without_duplicates(hits: Sequence[MemoryHit]) -> list[MemoryHit]:
    kept: list[MemoryHit] = []
    ids: set[str] = set()
    for hit in hits:
        duplicates = {link.memory_id for link in hit.memory.links if link.kind is LinkKind.DUPLICATE}
        if not duplicates & ids:
            kept.append(hit)
            ids.add(hit.memory.memory_id)
    return kept


def _print_order(hits: Sequence[MemoryHit]) -> list[MemoryHit]:
    """Clusters by their best rank; inside, episodes by their first memory and memories by time."""
    best: dict[int | None, int] = {}
    begun: dict[int | None, int] = {}
    for hit in hits:
        cluster, episode, time_ns = hit.memory.cluster, hit.memory.episode, hit.memory.event_time_ns
        best[cluster] = min(best.get(cluster, hit.rank), hit.rank)
        begun[episode] = min(begun.get(episode, time_ns), time_ns)

    def place(hit: MemoryHit) -> tuple[int, int, int, int, int]:
        memory = hit.memory
        return (
            best[memory.cluster],
            begun[memory.episode],
            memory.episode or 0,
            memory.event_time_ns,
            memory.key,
        )

    return sorted(hits, key=place)


def _render(hits: Sequence[MemoryHit], form: ContextFormat) -> str:
    """Print hits in their order; none are an empty text, and an empty list where the form is JSON."""
    if form in (ContextFormat.JSON, ContextFormat.CHAT_MESSAGES):
        return f"[{', '.join(_piece(hit, form) for hit in hits)}]"
    lines: list[str] = []
    head = ""
    for hit in hits:
        if (own := _head(hit, form)) != head:
            head = own
            lines.append(head)
        lines.append(_piece(hit, form))
    return "\n".join(lines)


def _head(hit: MemoryHit, form: ContextFormat) -> str:
    """Return what is printed once before hits of a cluster; "" for nothing."""
    return f"### {_title(hit) or 'Memories'}" if form is ContextFormat.MARKDOWN else ""


def _piece(hit: MemoryHit, form: ContextFormat) -> str:
    """Return what is printed of one hit: a line, or an object."""
    match form:
        case ContextFormat.MARKDOWN:
            return f"- {spoken_date(hit.memory.event_time_ns)}: {_said(hit)}"
        case ContextFormat.JSON:
            return json.dumps(_as_object(hit), ensure_ascii=False)
        case ContextFormat.CHAT_MESSAGES:
            return json.dumps({"role": "system", "content": _line(hit)}, ensure_ascii=False)
        case _:
            return _line(hit)


def _line(hit: MemoryHit) -> str:
    title = f'Memory from "{_title(hit)}"' if hit.cluster_title else "Memory"
    return f"[{title}, {spoken_date(hit.memory.event_time_ns)}] {_said(hit)}"


def _title(hit: MemoryHit) -> str:
    """Return the cluster's title on one line, whatever a client called it."""
    return " ".join(hit.cluster_title.split())


def _said(hit: MemoryHit) -> str:
    speaker = f"{' '.join(hit.memory.speaker.split())}: " if hit.memory.speaker else ""
    replaced = " (replaced by a newer memory)" if hit.memory.superseded_by else ""
    return f"{speaker}{' '.join(hit.memory.text.split())}{replaced}"


def _as_object(hit: MemoryHit) -> dict[str, str | bool]:
    memory = hit.memory
    shown: dict[str, str | bool] = {
        "id": memory.memory_id,
        "cluster": hit.cluster_title,
        "date": spoken_date(memory.event_time_ns),
        "speaker": memory.speaker,
        "text": memory.text,
    }
    if memory.superseded_by:
        shown["superseded_by"] = memory.superseded_by
    return shown
