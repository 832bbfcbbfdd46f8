"""Committing a draft of an edit of clusters: one transaction, and the mirror reads again what it touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clag_server.catalog.api import Catalog
from clag_server.catalog.api_clusters import EditAnswer
from clag_server.memory.edit_draft import EditDraft
from clag_server.memory.finished import finished
from clag_server.memory.namespace import NamespaceState

__all__ = ["commit_draft"]


async def commit_draft(
    state: NamespaceState,
    catalog: Catalog,
    draft: EditDraft,
    answer: Callable[[Mapping[int, int]], EditAnswer | None],
) -> tuple[int, Mapping[int, int]]:
    """Commit a draft; the namespace's lock must be held.

    Args:
        state: The namespace.
        catalog: The system of record.
        draft: The edit.
        answer: Gets the real number of each new cluster, and gives what retries are answered; None for nothing.

    Returns:
        The revision, and the real number of each new cluster by its provisional one.
    """
    plan, numbers = draft.plan(*state.map.next_numbers)
    try:
        revision = await finished(
            catalog.edit_clusters(state.ns, plan, answer=answer(numbers), now_ns=draft.now_ns)
        )
    except BaseException:
        await state.reload()  # it may be committed: the caller went away meanwhile
        raise
    clusters, episodes = draft.touched()
    await state.mirror(
        clusters=clusters | set(numbers.values()),
        episodes=episodes | {episode.episode for episode in plan.episodes},
    )
    return revision, numbers
