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
"""What joining two lines may cost; counted so that the whole never exceeds the budget."""


def assemble(
    hits: Sequence[MemoryHit], *, budget: int, form: ContextFormat, counter: TokenCounter
) -> AssembledContext:
    """Return the context of at most `budget` tokens (of the counter's tokenizer).

    Hits are taken in order of rank; one that does not fit is passed over and counted in `left_out`, as is a
    duplicate of one already taken. Nothing is cut in the middle.
    """
    wanted = _without_duplicates(hits)
    costs = counter.count([_render([hit], form) for hit in wanted])
    taken: list[MemoryHit] = []
    used = 0
    for hit, cost in zip(wanted, costs, strict=True):
        if used + cost + _SEPARATOR_TOKENS <= budget:
            taken.append(hit)
            used += cost + _SEPARATOR_TOKENS
    printed = _print_order(taken)
    text = _render(printed, form)
    tokens = counter.count([text])[0] if text else 0
    while printed and tokens > budget:
        # Tokenizers are not additive; give up the lowest ranked until the whole fits.
        worst = max(taken, key=lambda hit: hit.rank)
        taken.remove(worst)
        printed = _print_order(taken)
        text = _render(printed, form)
        tokens = counter.count([text])[0] if text else 0
    return AssembledContext(
        text=text,
        tokens=tokens,
        memory_ids=tuple(hit.memory.memory_id for hit in printed),
        left_out=len(hits) - len(printed),
        truncated=False,
    )


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
    """Clusters by their best rank; inside, by time."""
    best: dict[int | None, int] = {}
    for hit in hits:
        cluster = hit.memory.cluster
        best[cluster] = min(best.get(cluster, hit.rank), hit.rank)
    return sorted(
        hits,
        key=lambda hit: (best[hit.memory.cluster], hit.memory.event_time_ns, hit.memory.key),
    )


def _render(hits: Sequence[MemoryHit], form: ContextFormat) -> str:
    if not hits:
        return ""
    if form is ContextFormat.MARKDOWN:
        return _markdown(hits)
    if form is ContextFormat.JSON:
        return json.dumps([_as_object(hit) for hit in hits], ensure_ascii=False)
    if form is ContextFormat.CHAT_MESSAGES:
        return json.dumps([{"role": "system", "content": _line(hit)} for hit in hits], ensure_ascii=False)
    return "\n".join(_line(hit) for hit in hits)


def _line(hit: MemoryHit) -> str:
    title = f'Memory from "{hit.cluster_title}"' if hit.cluster_title else "Memory"
    return f"[{title}, {spoken_date(hit.memory.event_time_ns)}] {_said(hit)}"


def _said(hit: MemoryHit) -> str:
    speaker = f"{hit.memory.speaker}: " if hit.memory.speaker else ""
    replaced = " (replaced by a newer memory)" if hit.memory.superseded_by else ""
    return f"{speaker}{' '.join(hit.memory.text.split())}{replaced}"


def _markdown(hits: Sequence[MemoryHit]) -> str:
    lines: list[str] = []
    title: str | None = None
    for hit in hits:
        if hit.cluster_title != title:
            title = hit.cluster_title
            lines.append(f"### {title or 'Memories'}")
        lines.append(f"- {spoken_date(hit.memory.event_time_ns)}: {_said(hit)}")
    return "\n".join(lines)


def _as_object(hit: MemoryHit) -> dict[str, str]:
    memory = hit.memory
    return {
        "id": memory.memory_id,
        "cluster": hit.cluster_title,
        "date": spoken_date(memory.event_time_ns),
        "speaker": memory.speaker,
        "text": memory.text,
    }
