"""Who spoke: where a question names a speaker, that speaker's memories gain.

A name is in too many memories for BM25 to weigh it, and those that hold it are as often said to a person as by one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clag_server.catalog.api import EpisodeMembers
from clag_server.memory.config import RetrieveConfig
from clag_server.memory.lexical import tokens

__all__ = ["speaker_bonus"]


def speaker_bonus(members: EpisodeMembers, question: str, config: RetrieveConfig) -> NDArray[np.float64] | None:
    """Return what each candidate (n,) gains for its speaker; None where the question tells no speakers apart.

    Args:
        members: The candidates.
        question: The question's words. It names a speaker when they share a word that is not a function word.
        config: How much it is.
    """
    if not config.speaker_weight:
        return None
    asked = frozenset(tokens(question))
    speakers = frozenset(members.speakers.tolist())
    named = [speaker for speaker in speakers if not asked.isdisjoint(tokens(speaker))]
    if not named or len(named) == len(speakers):
        return None
    return np.where(np.isin(members.speakers, named), config.speaker_weight, 0.0)
