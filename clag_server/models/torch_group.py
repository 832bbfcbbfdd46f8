"""Which waiting generations get rows together: prompts of similar length share a pass. Runs in the worker only."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clag_server.models.torch_job import Job
    from clag_server.models.torch_prefix import PrefixBook

__all__ = ["group_to_read"]

_SIMILAR = 64
"""Waiting requests among which those of similar length are looked for."""


def group_to_read(line: Iterable[Job], free: int, prefixes: PrefixBook, most_tokens: int) -> list[Job]:
    """Return the first of a line and those that can be read in the same pass.

    Args:
        line: Those who wait; the first has not ended.
        free: Rows that can be given.
        prefixes: Kept beginnings; each job of the group is told what is kept of its prompt.
        most_tokens: Tokens of a pass, padding included.
    """
    head, *others = [job for job in islice(line, _SIMILAR) if not job.ended]
    _look_up(head, prefixes)
    if head.alone or head.keep_at or head.left > most_tokens:
        return [head]  # read alone: in pieces, or for the sake of those that share its beginning
    group, longest = [head], head.left
    for job in sorted(others, key=lambda one: abs(len(one.to_read) - len(head.to_read))):
        if len(group) == free:
            break
        if job.alone:
            continue
        _look_up(job, prefixes)
        wider = max(longest, job.left)
        if not job.keep_at and (len(group) + 1) * wider <= most_tokens:
            group.append(job)
            longest = wider
        else:
            job.kept = None
    return group


def _look_up(job: Job, prefixes: PrefixBook) -> None:
    """Find what is kept of a prompt's beginning, and whether more of it is worth keeping."""
    job.kept = prefixes.find(job.chain)
    job.read = job.kept_tokens = 0 if job.kept is None else int(job.kept.shape[3])
    worth = prefixes.worth_keeping(job.chain)
    job.keep_at = worth if worth > job.read else 0
